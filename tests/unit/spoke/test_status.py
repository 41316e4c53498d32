"""What `spoke status`, probes and metrics show: of an agent that runs, of one that stands by, and of one that does not run."""

import json
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from machinery.errors import ForbiddenError
from machinery.identity import HubId
from machinery.runtime.clock import ManualClock
from spoke.bootstraps import BootstrapFile, Bootstraps
from spoke.cli.network import SystemNetwork
from spoke.cli.status import StatusExitCode, StatusSource, render, status
from spoke.domain.hubs import HubCandidate, HubDecision, HubsStatus, HubState, ListedHub, Why
from spoke.domain.next_step import SessionEnd
from spoke.observability.probes import is_near, overview, registry_of
from spoke.observability.progress import DECISIONS, STUCK, AgentProgress, Role
from spoke.ports.hub import HubLostError
from tests.fakes.credentials import MemoryRemains, MemorySecrets
from tests.fakes.stage import Stage, is_available, until

ONE, TWO, THREE = (HubId(f"{number * 8}-0000-4000-8000-000000000001") for number in "123")


@dataclass
class Answers(SystemNetwork):
    """An agent that answers with what a progress tells; None: nobody answers."""

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
    said = render(document, stage.clock.now())
    assert document["cluster"] in said
    assert "0 s ago" in said
    told = json.dumps(document)
    for contents in [(await stage.secrets.read(name)).contents for name in stage.secrets.names]:  # type: ignore[attr-defined]
        for key in ("tls.key", "tls.crt", "kubeconfig"):
            assert contents[key].decode()[30:80].strip() not in told
    assert "BEGIN" not in told


async def test_without_an_agent_the_secrets_are_read_and_that_is_said(stage: Stage) -> None:
    document, _ = await status(source(stage, None))
    assert [hub["state"] for hub in document["hubs"]] == ["no credential yet"]
    assert "none yet" in render(document, stage.clock.now())
    await stage.joins()
    document, outcome = await status(source(stage, None))
    assert outcome is StatusExitCode.NO_ANSWER
    assert "nobody answers at 127.0.0.1:8000: Connection refused" in document["process"]["state"]
    assert document["owner"]["hubId"] == stage.hub.hub_id
    assert [hub["state"] for hub in document["hubs"]] == ["has a credential"]
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
    decision = HubDecision(ONE, Why.FAILED_OVER, "the hub west is lost; the hub east is ready")
    progress.standing = HubsStatus(ONE, 1770000000000, hubs, decision, clock.now(), candidates)
    progress.role = lambda: Role("stands by", "spoke-7d9f-x2x4k")
    return progress


async def test_every_hub_of_the_list_is_told_with_what_failed_there_and_why_the_owner_is_the_owner(stage: Stage) -> None:
    document, outcome = await status(source(stage, full(stage.clock)))
    assert outcome is StatusExitCode.NOT_READY
    said = render(document, stage.clock.now())
    lines = [line.split() for line in said.splitlines()]
    assert ["east", "yes", "ready", "2026-01-31T00:00:00Z", "https://east:6443"] in lines
    why, holder = "epoch 1770000000000, the hub west is lost; the hub east is ready", "spoke-7d9f-x2x4k holds the Lease"
    shown = ("west", "not accepted", "connection refused", why, f"stands by ({holder})", "HubFailedOver")
    assert [each for each in shown if each not in said] == []
    assert document["hubs"][1]["nextTry"] == "2026-01-01T00:00:10Z"


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
        decided = HubDecision(ONE, Why.FAILED_OVER, f"decision {number}")
        for _ in range(2):
            progress.standing = HubsStatus(ONE, number, (), decided, clock.now())
        clock.advance(timedelta(seconds=1))
    assert [each.message for each in progress.decisions] == [f"decision {number}" for number in range(5, DECISIONS + 5)]


def test_status_is_served_to_this_machine_only() -> None:
    near = {peer for peer in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "10.0.0.7", "") if is_near(peer)}
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
    told = lines(progress)
    assert {"muster_spoke_ready 0", "muster_spoke_live 1", "muster_spoke_works 1"} <= told
    assert not [line for line in told if "last_acknowledged" in line or "cluster_available" in line]

    at = clock.now().timestamp()
    progress.beat()
    clock.advance(timedelta(seconds=20))
    told = lines(progress)
    assert f"muster_spoke_last_acknowledged_heartbeat_timestamp_seconds {at!r}" in told
    assert {"muster_spoke_ready 1", "muster_spoke_heartbeats_acknowledged_total 1"} <= told


def test_metrics_count_hubs_by_state_troubles_by_cause_and_name_no_hub(progress: AgentProgress, clock: ManualClock) -> None:
    now = clock.now()
    hubs = (
        ListedHub(ONE, "hub-a", "https://a", HubState.READY, now + timedelta(days=9)),
        ListedHub(TWO, "hub-b", "https://b", HubState.READY, now + timedelta(days=3)),
        ListedHub(THREE, "hub-c", "https://c", HubState.LOST, now + timedelta(days=5)),
    )
    made = HubDecision(ONE, Why.FAILED_OVER, "the hub hub-b is lost")
    progress.standing = HubsStatus(ONE, 1, hubs, made, now)
    progress.standing = HubsStatus(ONE, 2, hubs, made, now)
    told = lines(progress)
    assert {'muster_spoke_hubs{state="ready"} 2', 'muster_spoke_hubs{state="lost"} 1'} <= told
    assert 'muster_spoke_hubs{state="denied"} 0' in told
    ends = {side: (now + timedelta(days=days)).timestamp() for side, days in (("owner", 9), ("reserve", 3))}
    assert {f'muster_spoke_certificate_expiry_timestamp_seconds{{hub="{side}"}} {end!r}' for side, end in ends.items()} <= told
    assert 'muster_spoke_failover_total{reason="HubFailedOver"} 1' in told, "one decision is counted once"
    assert not [line for line in told if "hub-a" in line or ONE in line]

    for error in (HubLostError("silent", SessionEnd.SILENT), HubLostError("silent", SessionEnd.SILENT), ForbiddenError("no")):
        progress.troubled(error, timedelta(), "trying again")
    told = lines(progress)
    assert {'muster_spoke_troubles_total{cause="silent"} 2', 'muster_spoke_troubles_total{cause="Forbidden"} 1'} <= told

    progress.role = lambda: Role("stands by", "other")
    assert "muster_spoke_works 0" in lines(progress)
    progress.role = lambda: Role("works without its Lease, and writes nothing")
    assert "muster_spoke_works 1" in lines(progress)
    for verdict in (True, False):
        progress.verdict = lambda verdict=verdict: verdict  # type: ignore[misc]
        assert f"muster_spoke_cluster_available {int(verdict)}" in lines(progress)
