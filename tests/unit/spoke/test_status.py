"""What `spoke status` shows: of an agent that runs, of one that stands by, and of one that does not run."""

import json
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from machinery.clock import ManualClock
from machinery.identity import HubId
from spoke.bootstraps import BootstrapFile, Bootstraps
from spoke.domain.hubs import Candidate, Decision, HubState, ListedHub, Standing, Why
from spoke.network import SystemNetwork
from spoke.overview import overview
from spoke.probes import is_near
from spoke.progress import DECISIONS, Progress, Role
from spoke.status import Outcome, Source, render, status
from tests.fakes.credentials import MemorySecrets
from tests.fakes.remains import MemoryRemains
from tests.fakes.stage import Stage, until
from tests.unit.spoke.test_agent import is_available

ONE, TWO = HubId("11111111-0000-4000-8000-000000000001"), HubId("22222222-0000-4000-8000-000000000002")


@dataclass
class Answers(SystemNetwork):
    """An agent that answers with what a progress tells; None: nobody answers."""

    progress: Progress | None

    async def ask(self, address: str, path: str) -> tuple[int, str]:
        assert (address, path) == ("127.0.0.1:8000", "/statusz")
        if self.progress is None:
            raise ConnectionRefusedError("Connection refused")
        return 200, json.dumps(overview(self.progress))


def source(stage: Stage, progress: Progress | None) -> Source:
    assert isinstance(stage.secrets, MemorySecrets)
    return Source(
        secrets=stage.secrets,
        remains=MemoryRemains(stage.secrets, stage.addon_secrets),
        bootstraps=Bootstraps([BootstrapFile(stage.file)]),
        network=Answers(progress),
        clock=stage.clock,
        probes="0.0.0.0:8000",
    )


async def test_a_running_agent_tells_its_hub_and_its_last_beat(stage: Stage) -> None:
    async with stage.running() as agent:
        await until(lambda: is_available(stage) and agent.progress.last_beat)
        document, outcome = await status(source(stage, agent.progress))
    assert outcome is Outcome.WELL
    assert document["ready"] is True
    assert document["process"] == {"state": "works"}
    assert document["owner"]["hubId"] == stage.hub.hub_id
    (hub,) = document["hubs"]
    assert hub["owner"] is True
    assert hub["state"] == "ready"
    assert hub["credentialEndsAt"] == "2026-01-31T00:00:00Z"
    said = render(document, stage.clock.now())
    assert document["cluster"] in said
    assert "0 s ago" in said


async def test_without_an_agent_the_secrets_are_read_and_that_is_said(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
    document, outcome = await status(source(stage, None))
    assert outcome is Outcome.NO_ANSWER
    assert "nobody answers at 127.0.0.1:8000: Connection refused" in document["process"]["state"]
    assert document["owner"]["hubId"] == stage.hub.hub_id
    assert [hub["state"] for hub in document["hubs"]] == ["has a credential"]
    no_port, outcome = await status(replace(source(stage, None), probes="127.0.0.1:0"))
    assert outcome is Outcome.NO_ANSWER
    assert "--health-listen" in no_port["process"]["state"]


async def test_before_anything_is_stored_the_list_is_told(stage: Stage) -> None:
    document, _ = await status(source(stage, None))
    assert [hub["state"] for hub in document["hubs"]] == ["no credential yet"]
    assert "none yet" in render(document, stage.clock.now())


async def test_nothing_secret_is_told(stage: Stage) -> None:
    async with stage.running() as agent:
        await until(lambda: is_available(stage))
        document, _ = await status(source(stage, agent.progress))
    told = json.dumps(document)
    for contents in [(await stage.secrets.read(name)).contents for name in stage.secrets.names]:  # type: ignore[attr-defined]
        for key in ("tls.key", "tls.crt", "kubeconfig"):
            assert contents[key].decode()[30:80].strip() not in told
    assert "BEGIN" not in told


def full(clock: ManualClock) -> Progress:
    progress = Progress(clock)
    hubs = (
        ListedHub(ONE, "east", "https://east:6443", HubState.READY, clock.now() + timedelta(days=30)),
        ListedHub(TWO, "west", "https://west:6443", HubState.NOT_ACCEPTED),
    )
    rest = clock.now() + timedelta(seconds=10)
    candidates = (Candidate(hubs[0], ready_since=clock.now()), Candidate(hubs[1], rest, "connection refused"))
    decision = Decision(ONE, Why.FAILED_OVER, "the hub west is lost; the hub east is ready")
    progress.standing = Standing(ONE, 1770000000000, hubs, decision, clock.now(), candidates)
    progress.role = lambda: Role("stands by", "spoke-7d9f-x2x4k")
    return progress


async def test_every_hub_of_the_list_is_told_with_what_failed_there_and_why_the_owner_is_the_owner(stage: Stage) -> None:
    document, outcome = await status(source(stage, full(stage.clock)))
    assert outcome is Outcome.NOT_READY
    said = render(document, stage.clock.now())
    lines = [line.split() for line in said.splitlines()]
    assert ["east", "yes", "ready", "2026-01-31T00:00:00Z", "https://east:6443"] in lines
    assert "west" in said
    assert "not accepted" in said
    assert "connection refused" in said
    assert "epoch 1770000000000, the hub west is lost; the hub east is ready" in said
    assert "stands by (spoke-7d9f-x2x4k holds the Lease)" in said
    assert "HubFailedOver" in said
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
    progress = Progress(clock)
    for number in range(DECISIONS + 5):
        decided = Decision(ONE, Why.FAILED_OVER, f"decision {number}")
        for _ in range(2):
            progress.standing = Standing(ONE, number, (), decided, clock.now())
        clock.advance(timedelta(seconds=1))
    assert [each.message for each in progress.decisions] == [f"decision {number}" for number in range(5, DECISIONS + 5)]


@pytest.mark.parametrize(
    ("peer", "near"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.7", False), ("", False)],
)
def test_only_this_machine_is_told(peer: str, *, near: bool) -> None:
    assert is_near(peer) is near
