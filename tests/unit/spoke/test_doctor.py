"""What `spoke doctor` finds and says to do, and what `spoke status`, probes and metrics show."""

import json
import logging
import re
from dataclasses import dataclass, field, replace
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest

from machinery.election import Candidate
from machinery.errors import DenialCause, ForbiddenError, UnavailableError
from machinery.identity import HubId
from machinery.observability import logs
from machinery.runtime.clock import ManualClock
from spoke.bootstraps.listing import BootstrapFile, Bootstraps
from spoke.cli.doctor import READY, Doctor
from spoke.cli.findings import DoctorStep
from spoke.cli.network import Network, SystemNetwork
from spoke.cli.status import StatusExitCode, StatusSource, render, status
from spoke.credentials.kubeconfigs import ANY_REACH
from spoke.domain.hubs import ChoiceReason, HubCandidate, HubDecision, HubsStatus, HubState, ListedHub
from spoke.domain.next_step import SessionLoss
from spoke.observability import progress as steps
from spoke.observability.probes import is_loopback_address, overview, registry_of
from spoke.observability.progress import DECISIONS, STUCK, AgentProgress, Role, StateAnnouncer
from spoke.options import Pause
from spoke.ports.cluster import SecretSnapshot
from spoke.ports.hub import HubInfo, HubLostError
from tests.fakes.credentials import MemoryRemains, MemorySecrets
from tests.fakes.hub import MemoryHub, MemoryHubClient
from tests.fakes.memory_lock import MemoryLock
from tests.fakes.stage import OWNER, Stage, is_available, until

ONE, TWO, THREE = (HubId(f"{number * 8}-0000-4000-8000-000000000001") for number in "123")


@dataclass
class WordyNetwork(Network):
    """Everything answers, unless a test disables it."""

    unknown: bool = False
    refused: bool = False
    hangs: bool = False
    probe: tuple[int, str] | OSError = (200, "ok\n")
    asked: list[str] = field(default_factory=list)

    async def resolve(self, _host: str) -> str:
        if self.unknown:
            raise OSError(-2, "Name or service not known")
        return "127.0.0.1"

    async def connect(self, host: str, port: int) -> None:
        self.asked.append(f"{host}:{port}")
        if self.hangs:
            raise TimeoutError
        if self.refused:
            raise ConnectionRefusedError(111, "Connection refused")

    async def ask(self, address: str, path: str) -> tuple[int, str]:
        self.asked.append(f"{address}{path}")
        if isinstance(self.probe, OSError):
            raise self.probe
        return self.probe


@pytest.fixture
def network() -> WordyNetwork:
    return WordyNetwork()


def patient(stage: Stage, network: WordyNetwork) -> Doctor:
    return Doctor(
        bootstrap=Bootstraps([BootstrapFile(stage.file)]),
        management=stage.cluster,
        secrets=stage.secrets,
        dial=stage.hub.dial,
        clock=stage.clock,
        network=network,
        probes="127.0.0.1:8000",
    )


async def found(looked_at: Doctor) -> dict[str, DoctorStep]:
    return {step.name: step async for step in looked_at.steps()}


async def test_all_steps_of_an_agent_that_is_well_say_so_and_nothing_is_written(joined: Stage, network: WordyNetwork) -> None:
    before, sessions = await joined.secrets.read(OWNER), len(joined.hub.sessions)
    joined.hub.calls.clear()
    steps = await found(patient(joined, network))
    assert list(steps) == ["this cluster", "stored credential", "name", "connection", "hub", "acceptance", "agent"]
    assert all(step.ok for step in steps.values()), steps
    assert "until" in steps["stored credential"].said
    assert (network.asked, joined.hub.calls) == (["127.0.0.1:8443", "127.0.0.1:8000/readyz"], ["info", "acceptance"])
    assert await joined.secrets.read(OWNER) == before
    assert len(joined.hub.sessions) == sessions, "no session is opened"
    joined.file.unlink()
    assert all(step.ok for step in (await found(patient(joined, network))).values()), "a bootstrap kubeconfig is not needed"
    joined.clock.advance(timedelta(days=40))
    steps = await found(patient(joined, network))
    assert "its recovery certificate brings it back" in steps["stored credential"].said
    assert steps["hub"].ok


async def test_agent_that_is_stopped_left_or_lacks_its_namespace_is_never_well(joined: Stage, network: WordyNetwork) -> None:
    lock = MemoryLock(joined.clock)
    elsewhere = replace(patient(joined, network), probes="127.0.0.1:0", lock=lock, namespace="agents")
    assert not (await found(elsewhere))["agent"].ok, "it never ran"
    assert (await found(replace(elsewhere, lock=None)))["agent"].ok, "its state is known only where it runs"
    held = await lock.take(None, Candidate("pod-1", "pod-1"), timedelta(seconds=15))
    assert not (await found(elsewhere))["agent"].ok, "its state is not known"
    for word in ("not ready: opening a session: its cluster is denied (no beat yet)", READY):
        lock.status = word
        held, step = await lock.renew(held), (await found(elsewhere))["agent"]
        assert ("pod-1 works" in step.said, step.ok, "hubctl accept" in step.advice) == (True, word == READY, word != READY)
    joined.cluster.refused_namespaces.add("agents")
    steps = await found(elsewhere)
    assert not steps["namespace"].ok
    assert "kubectl create namespace agents" in steps["namespace"].advice
    joined.clock.advance(timedelta(seconds=16))
    assert not (await found(elsewhere))["agent"].ok, "it was stopped"
    await lock.renew(held)
    assert (await found(elsewhere))["agent"].ok
    snapshot = await joined.secrets.read(OWNER)
    snapshot = await joined.secrets.write(OWNER, {**snapshot.contents, "left": b"{}"}, snapshot.version)
    for way in (elsewhere, patient(joined, network)):
        assert "has left its hubs" in (await found(way))["agent"].said
        assert not (await found(way))["agent"].ok
    await joined.secrets.delete(OWNER)
    steps = await found(elsewhere)
    assert (steps["agent"].ok, "hubctl get csr" in steps["agent"].advice) == (False, True), steps["agent"]


async def test_cluster_that_waits_was_denied_or_is_not_accepted_is_never_well(stage: Stage, network: WordyNetwork) -> None:
    stage.hub.approve = stage.hub.accept = False
    stage.options = replace(
        stage.options, pauses=replace(stage.options.pauses, denied=Pause(timedelta(seconds=2), timedelta(seconds=2)))
    )

    async def look(at: str) -> DoctorStep:
        await until(lambda: at in agent.progress.ready().text)
        network.probe = (503, agent.progress.ready().text)
        return (await found(patient(stage, network)))["agent"]

    async with stage.running() as agent:
        step = await look("approved")
        assert (step.ok, "hubctl get csr" in step.advice) == (False, True), step
        stage.hub.deny_request(next(iter(stage.hub.requests)), "not ours")
        step = await look("was denied")
        assert (step.ok, "not ours" in step.said, "hubctl accept NAME" in step.advice) == (False, True, True), step
        stage.hub.approve = True
        step = await look("accept this cluster")
        assert (step.ok, step.advice) == (False, "accept the cluster on the hub: hubctl accept NAME"), step


async def test_agent_known_by_its_hub_alone_is_well_only_while_it_is_accepted(joined: Stage, network: WordyNetwork) -> None:
    (cluster,) = joined.hub.clusters
    elsewhere = replace(patient(joined, network), probes="127.0.0.1:0")
    for accepted, denied, text in ((False, False, "not accepted"), (False, True, "denies"), (True, False, "has accepted")):
        joined.hub.clusters[cluster].accepted, joined.hub.clusters[cluster].denied = accepted, denied
        step = (await found(elsewhere))["acceptance"]
        assert (step.ok, text in step.said, f"hubctl accept {cluster}" in step.advice) == (accepted, True, not accepted), step
    joined.hub.plain = True
    assert "acceptance" not in await found(elsewhere), "a hub of an older release does not report it"


async def test_credential_that_may_not_ask_is_no_good_one_and_a_denied_cluster_is_named(
    joined: Stage, network: WordyNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    for causes, advice in (((), "hubctl diagnose"), (DenialCause.CLUSTER_DENIED.because("denied"), "hubctl accept")):
        error = ForbiddenError("this may not be asked", causes=causes)

        async def info(_client: MemoryHubClient, error: ForbiddenError = error) -> HubInfo:
            raise error

        monkeypatch.setattr(MemoryHubClient, "info", info)
        step = (await found(patient(joined, network)))["hub"]
        assert (step.ok, advice in step.advice) == (False, True), step


async def test_before_the_first_registration_the_bootstrap_kubeconfig_is_followed(stage: Stage, network: WordyNetwork) -> None:
    steps = await found(patient(stage, network))
    assert list(steps) == ["this cluster", "stored credential", "bootstrap kubeconfig", "name", "connection", "hub", "agent"]
    assert all(step.ok for step in steps.values()), steps
    assert "there is no hub kubeconfig yet" in steps["stored credential"].said
    stage.clock.advance(timedelta(hours=2))
    steps = await found(patient(stage, network))
    assert not steps["bootstrap kubeconfig"].ok
    assert "hubctl create bootstrap-kubeconfig" in steps["bootstrap kubeconfig"].advice
    assert "hub" not in steps


async def test_unusable_stored_credential_is_named_and_the_bootstrap_one_followed(joined: Stage, network: WordyNetwork) -> None:
    class Refused(MemorySecrets):
        async def read(self, name: str) -> SecretSnapshot:
            raise ForbiddenError(f"{name} is forbidden")

    steps = await found(replace(patient(joined, network), secrets=Refused()))
    assert not steps["stored credential"].ok
    assert "give the agent get" in steps["stored credential"].advice
    assert steps["hub"].ok
    snapshot = await joined.secrets.read(OWNER)
    await joined.secrets.write(OWNER, {**snapshot.contents, "tls.key": b"garbage"}, snapshot.version)
    steps = await found(patient(joined, network))
    assert not steps["stored credential"].ok
    assert "tls.key" in steps["stored credential"].said
    assert steps["hub"].ok


async def test_cluster_that_does_not_answer_ends_the_walk(joined: Stage, network: WordyNetwork) -> None:
    class Away(type(joined.cluster)):  # type: ignore[misc]
        async def version(self) -> str:
            raise UnavailableError("connection refused")

    steps = await found(replace(patient(joined, network), management=Away()))
    assert (steps["this cluster"].ok, list(steps)) == (False, ["this cluster", "agent"])


async def test_each_fault_is_found_where_it_is_with_advice(joined: Stage) -> None:
    waiting = "not ready: waiting for the hub to accept this cluster (hubctl accept) (no beat was acknowledged yet)"
    refused = ConnectionRefusedError(111, "Connection refused")
    rows = [
        (WordyNetwork(unknown=True), "name", "Name or service not known", ""),
        (WordyNetwork(refused=True), "connection", "Connection refused", ""),
        (WordyNetwork(hangs=True), "connection", "no answer in time", ""),
        (WordyNetwork(probe=(503, f"{waiting}\n")), "agent", waiting, "hubctl accept"),
    ]
    for trouble, name, text, advice in rows:
        steps = await found(patient(joined, trouble))
        assert (steps[name].ok, steps[name].said) == (False, text)
        assert steps[name].advice
        assert advice in steps[name].advice
        assert ("hub" in steps) is (name == "agent")
    step = (await found(patient(joined, WordyNetwork(probe=refused))))["agent"]
    assert (step.ok, "spoke run" in step.advice) == (False, True), step


async def test_what_the_hub_says_of_itself_its_clock_and_credentials_is_compared(joined: Stage, network: WordyNetwork) -> None:
    async def step(**changes: Any) -> DoctorStep:
        return (await found(replace(patient(joined, network), **changes)))["hub"]

    for ahead, word in ((timedelta(minutes=2), "ahead of"), (-timedelta(minutes=2), "behind")):
        apart = await step(clock=ManualClock(joined.clock.now() - ahead))
        assert (apart.ok, f"its clock is 120 s {word} this machine's" in apart.said) == (False, True), apart
    hub_id, joined.hub.hub_id = joined.hub.hub_id, HubId("0f1e2d3c-0000-4000-8000-000000000009")
    other = await step()
    assert (other.ok, "another hub answers" in other.said) == (False, True), other
    joined.hub.hub_id = hub_id
    joined.hub.revoked.update(joined.hub.issued)
    revoked = await step()
    assert (revoked.ok, "hubctl create bootstrap-kubeconfig" in revoked.advice) == (False, True), revoked


async def test_behind_a_proxy_the_proxy_is_looked_at(joined: Stage, network: WordyNetwork) -> None:
    reach = replace(ANY_REACH, proxy_url="http://user:canary@proxy.example:3128")
    looked_at = replace(patient(joined, network), reach=reach, bootstrap=Bootstraps([BootstrapFile(joined.file, reach)]))
    steps = await found(looked_at)
    assert network.asked[0] == "proxy.example:3128"
    assert not any("canary" in step.said for step in steps.values())


async def test_each_of_several_hubs_is_looked_at_with_its_own_credential(joined: Stage, network: WordyNetwork) -> None:
    second = MemoryHub(joined.clock, hub_id=HubId("22222222-0000-4000-8000-000000000002"))
    hubs = {hub.authority.certificate: hub for hub in (joined.hub, second)}
    file, other = joined.file.with_name("east.kubeconfig"), joined.file.with_name("west.kubeconfig")
    file.write_bytes(joined.file.read_bytes())
    other.write_bytes(second.bootstrap_kubeconfig())
    both = replace(
        patient(joined, network),
        bootstrap=Bootstraps([BootstrapFile(file), BootstrapFile(other), BootstrapFile(file.with_name("north"))]),
        dial=lambda address, identity: hubs[address.ca].dial(address, identity),
    )
    steps = await found(both)
    assert steps["east (owner): hub"].ok
    assert "until" in steps["east (owner): stored credential"].said
    assert steps["west: hub"].ok
    assert "no hub kubeconfig yet" in steps["west: stored credential"].said
    assert not steps["list of hubs"].ok
    assert "north cannot be read" in steps["list of hubs"].said
    second.away = True
    steps = await found(both)
    assert steps["east (owner): hub"].ok, "a break at one says nothing of the other"
    assert not steps["west: hub"].ok


@dataclass
class Answers(SystemNetwork):
    """An agent that answers with this progress; None: no answer."""

    progress: AgentProgress | None

    async def ask(self, address: str, path: str) -> tuple[int, str]:
        assert (address, path) == ("127.0.0.1:8000", "/statusz")
        if self.progress is None:
            raise ConnectionRefusedError("Connection refused")
        return 200, json.dumps(overview(self.progress))


def source(stage: Stage, progress: AgentProgress | None) -> StatusSource:
    assert isinstance(stage.secrets, MemorySecrets)
    return StatusSource(
        secrets=stage.secrets,
        remains=MemoryRemains(stage.secrets, stage.addon_secrets),
        bootstraps=Bootstraps([BootstrapFile(stage.file)]),
        network=Answers(progress),
        clock=stage.clock,
        probes="0.0.0.0:8000",
    )


async def test_running_agent_reports_its_hub_and_its_last_beat_and_nothing_secret(stage: Stage) -> None:
    async with stage.running() as agent:
        await until(lambda: is_available(stage) and agent.progress.last_beat)
        document, outcome = await status(source(stage, agent.progress))
    assert (outcome, document["ready"], document["process"]) == (StatusExitCode.WELL, True, {"state": "works"})
    assert document["owner"]["hubId"] == stage.hub.hub_id
    (hub,) = document["hubs"]
    assert (hub["owner"], hub["state"], hub["credentialEndsAt"]) == (True, "ready", "2026-01-31T00:00:00Z")
    message = render(document, stage.clock.now())
    assert document["cluster"] in message
    assert "0 s ago" in message
    text = json.dumps(document)
    for contents in [(await stage.secrets.read(name)).contents for name in stage.secrets.names]:  # type: ignore[attr-defined]
        for key in ("tls.key", "tls.crt", "kubeconfig"):
            assert contents[key].decode()[30:80].strip() not in text
    assert "BEGIN" not in text


async def test_without_an_agent_the_secrets_are_read_and_that_is_said(stage: Stage) -> None:
    document, _ = await status(source(stage, None))
    assert [hub["state"] for hub in document["hubs"]] == ["no credential yet"]
    assert "none yet" in render(document, stage.clock.now())
    await stage.joins()
    document, outcome = await status(source(stage, None))
    assert outcome is StatusExitCode.NO_ANSWER
    assert "no agent answers at 127.0.0.1:8000: Connection refused" in document["process"]["state"]
    assert (document["owner"]["hubId"], [hub["state"] for hub in document["hubs"]]) == (stage.hub.hub_id, ["has a credential"])
    no_port, outcome = await status(replace(source(stage, None), probes="127.0.0.1:0"))
    assert outcome is StatusExitCode.NO_ANSWER
    assert "--health-listen" in no_port["process"]["state"]


def full(clock: ManualClock) -> AgentProgress:
    progress = AgentProgress(clock)
    hubs = (
        ListedHub(ONE, "east", "https://east:6443", HubState.READY, clock.now() + timedelta(days=30)),
        ListedHub(TWO, "west", "https://west:6443", HubState.NOT_ACCEPTED),
    )
    rest = clock.now() + timedelta(seconds=10)
    candidates = (HubCandidate(hubs[0], ready_since=clock.now()), HubCandidate(hubs[1], rest, "connection refused"))
    decision = HubDecision(ONE, ChoiceReason.FAILED_OVER, "the hub west is lost; the hub east is ready")
    progress.hubs_status = HubsStatus(ONE, 1770000000000, hubs, decision, clock.now(), candidates)
    progress.role = lambda: Role("stands by", "spoke-7d9f-x2x4k")
    return progress


async def test_every_hub_of_the_list_is_reported_with_what_failed_there_and_why_the_owner_is_the_owner(stage: Stage) -> None:
    document, outcome = await status(source(stage, full(stage.clock)))
    assert outcome is StatusExitCode.NOT_READY
    text = render(document, stage.clock.now())
    lines = [line.split() for line in text.splitlines()]
    assert ["east", "yes", "ready", "2026-01-31T00:00:00Z", "https://east:6443"] in lines
    why, holder = "epoch 1770000000000, the hub west is lost; the hub east is ready", "spoke-7d9f-x2x4k holds the Lease"
    shown = ("west", "not accepted", "connection refused", why, f"stands by ({holder})", "HubFailedOver")
    assert ([each for each in shown if each not in text], document["hubs"][1]["nextTry"]) == ([], "2026-01-01T00:00:10Z")


async def test_a_process_that_works_no_more_tells_nothing_of_the_past(stage: Stage) -> None:
    progress = full(stage.clock)
    progress.beat()
    stage.clock.advance(timedelta(seconds=11))
    document, _ = await status(source(stage, progress))
    assert "nextTry" not in document["hubs"][1], "its rest is over"
    progress.stop()
    document, _ = await status(source(stage, progress))
    assert document["owner"] == {}
    assert "lastBeat" not in document
    assert [hub["state"] for hub in document["hubs"]] == ["no credential yet"]
    assert document["decisions"]


def test_the_last_decisions_are_kept_and_no_more() -> None:
    clock = ManualClock()
    progress = AgentProgress(clock)
    for number in range(DECISIONS + 5):
        decided = HubDecision(ONE, ChoiceReason.FAILED_OVER, f"decision {number}")
        for _ in range(2):
            progress.hubs_status = HubsStatus(ONE, number, (), decided, clock.now())
        clock.advance(timedelta(seconds=1))
    assert [each.message for each in progress.decisions] == [f"decision {number}" for number in range(5, DECISIONS + 5)]


def test_status_is_served_to_this_machine_only() -> None:
    near = {peer for peer in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "10.0.0.7", "") if is_loopback_address(peer)}
    assert near == {"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"}


@pytest.fixture
def progress(clock: ManualClock) -> AgentProgress:
    return AgentProgress(clock)


def test_ready_for_as_long_as_the_lease_lasts_after_an_acknowledged_beat(progress: AgentProgress, clock: ManualClock) -> None:
    progress.lease(timedelta(seconds=2))
    assert not progress.ready().ok
    progress.beat()
    clock.advance(timedelta(seconds=2))
    assert progress.ready().ok
    clock.advance(timedelta(milliseconds=1))
    assert not progress.ready().ok
    assert "2 s ago" in progress.ready().text


def test_not_ready_names_the_step_and_its_trouble(progress: AgentProgress) -> None:
    for step in ("reading", "dialling"):
        progress.enter(step)
    progress.fail("connection refused")
    for step in ("reading", "dialling"):
        progress.enter(step)
        assert f"{step}: connection refused" in progress.ready().text
    progress.enter("waiting")
    assert "connection refused" not in progress.ready().text


def test_a_console_shows_each_state_once_with_hub_cluster_and_command(progress: AgentProgress) -> None:
    logs.configure("info", logs.LogFormat.CONSOLE, stream := StringIO())
    progress.on_step = StateAnnouncer().update
    approval, acceptance, reporting = steps.WAITING_FOR_APPROVAL, steps.WAITING_FOR_ACCEPTANCE, steps.REPORTING
    for step in (approval, "other", approval, acceptance, reporting, reporting):
        progress.hub, progress.cluster = "hub.example:8443", "c1"
        progress.enter(step)
    logging.getLogger().handlers.clear()
    shown = [line.strip() for line in stream.getvalue().splitlines() if re.match("  (  |state|hub|cluster)", line)]
    where, waits = ["hub      hub.example:8443", "cluster  c1"], "state    waiting for acceptance"
    first = [*where, waits, "hubctl accept c1", "hubctl certificate approve c1"]
    last = [*where, "state    connected", "hubctl describe cluster c1"]
    assert shown == [*first, *where, waits, "hubctl accept c1", *last]


def test_alive_unless_a_piece_of_work_never_ends(progress: AgentProgress, clock: ManualClock) -> None:
    with progress.working("status"):
        clock.advance(STUCK)
        assert progress.live().ok
        clock.advance(timedelta(seconds=1))
        assert not progress.live().ok
        assert "status" in progress.live().text
    assert progress.live().ok
    clock.advance(timedelta(days=1))
    assert progress.live().ok


def lines(progress: AgentProgress) -> set[str]:
    return {line for line in registry_of(progress).text().splitlines() if line.startswith("muster_")}


def test_metrics_count_beats_and_give_the_instant_of_the_last(progress: AgentProgress, clock: ManualClock) -> None:
    page = lines(progress)
    assert {"muster_spoke_ready 0", "muster_spoke_live 1", "muster_spoke_works 1"} <= page
    assert not [line for line in page if "last_acknowledged" in line or "cluster_available" in line]
    at = clock.now().timestamp()
    progress.beat()
    clock.advance(timedelta(seconds=20))
    page = lines(progress)
    assert f"muster_spoke_last_acknowledged_heartbeat_timestamp_seconds {at!r}" in page
    assert {"muster_spoke_ready 1", "muster_spoke_heartbeats_acknowledged_total 1"} <= page


def test_metrics_count_hubs_by_state_troubles_by_cause_and_name_no_hub(progress: AgentProgress, clock: ManualClock) -> None:
    now = clock.now()
    hubs = (
        ListedHub(ONE, "hub-a", "https://a", HubState.READY, now + timedelta(days=9)),
        ListedHub(TWO, "hub-b", "https://b", HubState.READY, now + timedelta(days=3)),
        ListedHub(THREE, "hub-c", "https://c", HubState.LOST, now + timedelta(days=5)),
    )
    made = HubDecision(ONE, ChoiceReason.FAILED_OVER, "the hub hub-b is lost")
    progress.hubs_status = HubsStatus(ONE, 1, hubs, made, now)
    progress.hubs_status = HubsStatus(ONE, 2, hubs, made, now)
    page = lines(progress)
    assert {'muster_spoke_hubs{state="ready"} 2', 'muster_spoke_hubs{state="lost"} 1'} <= page
    assert 'muster_spoke_hubs{state="denied"} 0' in page
    ends = {side: (now + timedelta(days=days)).timestamp() for side, days in (("owner", 9), ("standby", 3))}
    assert {f'muster_spoke_certificate_expiry_timestamp_seconds{{hub="{side}"}} {end!r}' for side, end in ends.items()} <= page
    assert 'muster_spoke_failover_total{reason="HubFailedOver"} 1' in page, "one decision is counted once"
    assert not [line for line in page if "hub-a" in line or ONE in line]
    for error in (HubLostError("silent", SessionLoss.SILENT), HubLostError("silent", SessionLoss.SILENT), ForbiddenError("no")):
        progress.log_failure(error, timedelta(), "trying again")
    page = lines(progress)
    assert {'muster_spoke_troubles_total{cause="silent"} 2', 'muster_spoke_troubles_total{cause="Forbidden"} 1'} <= page
    progress.role = lambda: Role("stands by", "other")
    assert "muster_spoke_works 0" in lines(progress)
    progress.role = lambda: Role("works without its Lease, and writes nothing")
    assert "muster_spoke_works 1" in lines(progress)
    for verdict in (True, False):
        progress.verdict = lambda verdict=verdict: verdict  # type: ignore[misc]
        assert f"muster_spoke_cluster_available {int(verdict)}" in lines(progress)
