"""What `spoke doctor` finds on the way to the hub, and what it says to do."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from machinery.election import Candidate
from machinery.errors import DenialCause, ForbiddenError, UnavailableError
from machinery.identity import HubId
from machinery.runtime.clock import ManualClock
from spoke.bootstraps import BootstrapFile, Bootstraps
from spoke.cli.doctor import READY, Doctor, Patient
from spoke.cli.findings import DoctorStep
from spoke.cli.network import Network
from spoke.credentials.kubeconfigs import HOWEVER
from spoke.options import Pause
from spoke.ports.cluster import SecretSnapshot
from spoke.ports.hub import HubInfo
from tests.fakes.credentials import MemorySecrets
from tests.fakes.hub import MemoryHub, MemoryHubClient
from tests.fakes.memory_lock import MemoryLock
from tests.fakes.stage import OWNER, Stage, until


@dataclass
class WordyNetwork(Network):
    """Everything answers, unless it is told not to."""

    unknown: bool = False
    refused: bool = False
    hangs: bool = False
    probe: tuple[int, str] | OSError = (200, "ok\n")
    asked: list[str] = field(default_factory=list)

    async def resolve(self, host: str) -> str:
        del host
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


def patient(stage: Stage, network: WordyNetwork) -> Patient:
    return Patient(
        bootstrap=Bootstraps([BootstrapFile(stage.file)]),
        management=stage.cluster,
        secrets=stage.secrets,
        dial=stage.hub.dial,
        clock=stage.clock,
        network=network,
        probes="127.0.0.1:8000",
    )


async def found(looked_at: Patient) -> dict[str, DoctorStep]:
    return {step.name: step async for step in Doctor(looked_at).steps()}


async def test_all_steps_of_an_agent_that_is_well_say_so_and_nothing_is_written(joined: Stage, network: WordyNetwork) -> None:
    before, sessions = await joined.secrets.read(OWNER), len(joined.hub.sessions)
    joined.hub.calls.clear()
    steps = await found(patient(joined, network))
    assert list(steps) == ["this cluster", "stored credential", "name", "connection", "hub", "acceptance", "agent"]
    assert all(step.ok for step in steps.values()), steps
    assert "until" in steps["stored credential"].said
    assert network.asked == ["127.0.0.1:8443", "127.0.0.1:8000/readyz"]
    assert joined.hub.calls == ["info", "acceptance"]
    assert await joined.secrets.read(OWNER) == before
    assert len(joined.hub.sessions) == sessions, "no session is opened"

    joined.file.unlink()
    assert all(step.ok for step in (await found(patient(joined, network))).values()), "a bootstrap kubeconfig is not needed"
    joined.clock.advance(timedelta(days=40))
    steps = await found(patient(joined, network))
    assert "its recovery certificate brings it back" in steps["stored credential"].said
    assert steps["hub"].ok


async def test_agent_that_is_stopped_has_left_waits_or_lacks_its_namespace_is_never_well(
    joined: Stage, network: WordyNetwork
) -> None:
    lock = MemoryLock(joined.clock)
    elsewhere = replace(patient(joined, network), probes="127.0.0.1:0", lock=lock, namespace="agents")
    assert not (await found(elsewhere))["agent"].ok, "it never ran"
    assert not (await found(replace(elsewhere, lock=None)))["agent"].ok
    held = await lock.take(None, Candidate("pod-1", "pod-1"), timedelta(seconds=15))
    assert not (await found(elsewhere))["agent"].ok, "its state is not known"
    for status in ("not ready: opening a session: its cluster is denied (no beat yet)", READY):
        lock.status = status
        held = await lock.renew(held)
        step = (await found(elsewhere))["agent"]
        assert ("pod-1 works" in step.said, step.ok, "hubctl accept" in step.advice) == (True, status == READY, status != READY)
    joined.cluster.refused_namespaces.add("agents")
    steps = await found(elsewhere)
    assert not steps["namespace"].ok
    assert "kubectl create namespace agents" in steps["namespace"].advice
    joined.clock.advance(timedelta(seconds=16))
    assert not (await found(elsewhere))["agent"].ok, "it was stopped"
    await lock.renew(held)
    assert (await found(elsewhere))["agent"].ok

    snapshot = await joined.secrets.read(OWNER)
    left = {**snapshot.contents, "left": b"{}"}
    snapshot = await joined.secrets.write(OWNER, left, snapshot.version)
    for way in (elsewhere, patient(joined, network)):
        assert "has left its hubs" in (await found(way))["agent"].said
        assert not (await found(way))["agent"].ok
    await joined.secrets.delete(OWNER)
    steps = await found(elsewhere)
    assert not steps["agent"].ok
    assert "hubctl get csr" in steps["agent"].advice


async def test_cluster_that_waits_for_approval_was_denied_or_is_not_accepted_is_never_well(
    stage: Stage, network: WordyNetwork
) -> None:
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


async def test_agent_that_only_its_hub_or_its_lease_tells_of_is_not_well_before_it_is_accepted_or_once_it_is_denied(
    joined: Stage, network: WordyNetwork
) -> None:
    (cluster,) = joined.hub.clusters
    elsewhere = replace(patient(joined, network), probes="127.0.0.1:0")
    for accepted, denied, said in ((False, False, "not accepted"), (False, True, "denies"), (True, False, "has accepted")):
        joined.hub.clusters[cluster].accepted, joined.hub.clusters[cluster].denied = accepted, denied
        step = (await found(elsewhere))["acceptance"]
        assert (step.ok, said in step.said, f"hubctl accept {cluster}" in step.advice) == (accepted, True, not accepted), step
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


async def test_stored_credential_that_cannot_be_used_is_named_and_the_bootstrap_kubeconfig_followed(
    joined: Stage, network: WordyNetwork
) -> None:
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
    assert not steps["this cluster"].ok
    assert list(steps) == ["this cluster", "agent"]


async def test_each_fault_is_found_where_it_is_with_advice(joined: Stage) -> None:
    waiting = "not ready: waiting for the hub to accept this cluster (hubctl accept) (no beat was acknowledged yet)"
    refused = ConnectionRefusedError(111, "Connection refused")
    rows = [
        (WordyNetwork(unknown=True), "name", "Name or service not known", ""),
        (WordyNetwork(refused=True), "connection", "Connection refused", ""),
        (WordyNetwork(hangs=True), "connection", "no answer in time", ""),
        (WordyNetwork(probe=(503, f"{waiting}\n")), "agent", waiting, "hubctl accept"),
    ]
    for trouble, name, said, advice in rows:
        steps = await found(patient(joined, trouble))
        assert (steps[name].ok, steps[name].said) == (False, said)
        assert steps[name].advice
        assert advice in steps[name].advice
        assert ("hub" in steps) is (name == "agent")
    step = (await found(patient(joined, WordyNetwork(probe=refused))))["agent"]
    assert not step.ok
    assert "spoke run" in step.advice


async def test_what_the_hub_says_of_itself_its_clock_and_the_credential_is_compared(
    joined: Stage, network: WordyNetwork
) -> None:
    async def step(**changes: Any) -> DoctorStep:
        return (await found(replace(patient(joined, network), **changes)))["hub"]

    for ahead, word in ((timedelta(minutes=2), "ahead of"), (-timedelta(minutes=2), "behind")):
        apart = await step(clock=ManualClock(joined.clock.now() - ahead))
        assert not apart.ok
        assert f"its clock is 120 s {word} this machine's" in apart.said
    hub_id, joined.hub.hub_id = joined.hub.hub_id, HubId("0f1e2d3c-0000-4000-8000-000000000009")
    other = await step()
    assert not other.ok
    assert "another hub answers" in other.said
    joined.hub.hub_id = hub_id
    joined.hub.revoked.update(joined.hub.issued)
    revoked = await step()
    assert not revoked.ok
    assert "hubctl create bootstrap-kubeconfig" in revoked.advice


async def test_behind_a_proxy_the_proxy_is_looked_at(joined: Stage, network: WordyNetwork) -> None:
    reach = replace(HOWEVER, proxy_url="http://user:canary@proxy.example:3128")
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
