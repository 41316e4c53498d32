"""Controllers of a session: beats and what their silence means, namespaces of cluster sets, Events and the ManagedCluster."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given, strategies as st

from machinery.errors import ForbiddenError, UnavailableError
from machinery.identity import AgentId, ClusterName, HubId, agent_subject
from machinery.meta.conditions import AVAILABLE, FALSE, TRUE, Condition
from machinery.runtime.clock import OffsetClock, SystemClock
from spoke.controllers.heartbeat_sender import HeartbeatSender
from spoke.controllers.managed_namespaces import KEY, ManagedNamespaceController
from spoke.controllers.status import CHANGED, UPKEEP, AvailabilityWatch, ClusterReconciler, StatusReconciler
from spoke.domain import report as reports
from spoke.domain.names import AgentNames
from spoke.domain.next_step import SessionLoss
from spoke.domain.schedule import SHORTEST_INTERVAL, SPREAD, STEP, pause
from spoke.ports.cluster import ApiServerHealth
from spoke.ports.hub import ClientIdentity, HubLostError, TransportFeature
from spoke.session.reports import EVENT_BURST, EVENT_QUEUE, SessionEvents
from tests.checks import awaited_refusal, check_refusal_of, present
from tests.fakes.credentials import MemoryCluster
from tests.fakes.hub import HUB_ID, KnownCluster, MemoryHub, MemoryHubClient, MemorySession
from tests.fakes.several import Several
from tests.fakes.stage import Stage, until
from tests.fakes.virtual_time import LoopClock, in_virtual_time

CLUSTER = ClusterName("berlin")
LABEL = reports.hub_label(HUB_ID, "https://hub")
A, B = reports.ManagedNamespace("a", "blue"), reports.ManagedNamespace("b", "blue")
NOTES = {"agent.open-cluster-management.io/site": "b"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATE = timedelta(milliseconds=15)  # what a loop of tests takes from one look to the next, at most

moments = st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - the zone is beside it
draws = st.floats(0, 1, exclude_max=True)


def session() -> MemorySession:
    hub = MemoryHub(SystemClock())
    hub.clusters[CLUSTER] = KnownCluster("uid", "cluster-uid", accepted=True)
    credential = hub.credential(agent_subject(CLUSTER, AgentId("abcde")))
    made = MemorySession(hub, CLUSTER, ClientIdentity(credential.chain, credential.key))
    hub.sessions.append(made)
    return made


def controller(
    on: MemorySession,
    *,
    verdict: Callable[[], bool | None] = lambda: True,
    reported: list[float] | None = None,
    random: float = 0,
    ack_timeout: timedelta = timedelta(milliseconds=60),
) -> HeartbeatSender:
    class Drawn(Random):
        def random(self) -> float:
            return random

    acknowledged = (lambda: reported.append(asyncio.get_running_loop().time())) if reported is not None else lambda: None
    return HeartbeatSender(on, verdict=verdict, acknowledged=acknowledged, ack_timeout=ack_timeout, random=Drawn())


@asynccontextmanager
async def running(lease: HeartbeatSender) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(lease.run())
    yield task
    task.cancel()
    await asyncio.wait([task])


async def test_first_beat_is_sent_at_once_when_the_cluster_is_accepted_and_every_beat_asks_for_the_verdict() -> None:
    on, verdicts = session(), iter((None, True, False))
    lease = controller(on, verdict=lambda: next(verdicts, False))
    async with running(lease):
        for _ in range(20):
            await asyncio.sleep(0)
        assert on.beats == []
        lease.accept(accepted=True)
        await until(lambda: len(on.beats) >= 3)
    assert on.beats[:3] == [None, True, False]


@pytest.mark.parametrize(("drawn", "part"), [(0.0, 1.0), (1.0, 0.75)])
async def test_the_interval_shrinks_by_up_to_a_quarter_and_a_new_verdict_is_beaten_at_once(drawn: float, part: float) -> None:
    on, reported = session(), list[float]()
    on.hub.beat_interval = timedelta(seconds=80)
    lease = controller(on, reported=reported, random=drawn)
    lease.accept(accepted=True)
    async with running(lease):
        await asyncio.sleep(390)
        assert [after - before for before, after in pairwise(reported)] == pytest.approx([80 * part] * (len(reported) - 1))
        beats = len(on.beats)
        assert beats >= 4
        lease.send_now()
        await until(lambda: len(on.beats) == beats + 1)


class Thrifty(MemorySession):
    """Acknowledges nothing by itself: `acknowledge` speaks for all beats so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._heard = asyncio.Event()

    async def beat(self, *, available: bool | None) -> None:
        await super().beat(available=available)
        await self._heard.wait()

    def acknowledge(self) -> None:
        self._heard.set()
        self._heard = asyncio.Event()


async def test_beats_keep_their_interval_while_acknowledgements_come_together() -> None:
    """The oldest beat that waits is the one by which silence is known."""
    plain, reported, loop = session(), list[float](), asyncio.get_running_loop()
    plain.hub.beat_interval = timedelta(milliseconds=10)
    on = Thrifty(plain.hub, plain.cluster, plain.identity)
    lease = controller(on, reported=reported, ack_timeout=timedelta(milliseconds=200))
    lease.accept(accepted=True)
    run = asyncio.create_task(lease.run())
    await until(lambda: len(on.beats) == 4)
    assert reported == []
    on.acknowledge()
    began = loop.time()
    await until(lambda: len(reported) == 4)
    assert present(await awaited_refusal(HubLostError, run)).loss is SessionLoss.SILENT
    assert 0.2 <= loop.time() - began < 0.22, "the beat after those that were acknowledged, which came within an interval"
    assert len(on.beats) > 8


async def test_hub_that_does_not_acknowledge_is_lost_as_silent_only_while_the_cluster_is_accepted() -> None:
    on = session()
    on.hub.silent = True
    lease = controller(on)
    lease.accept(accepted=True)
    assert present(await awaited_refusal(HubLostError, lease.run())).loss is SessionLoss.SILENT
    lease = controller(on)
    lease.accept(accepted=True)
    async with running(lease) as task:
        await until(lambda: len(on.beats) > 1)
        lease.accept(accepted=False)
        done, _ = await asyncio.wait([task], timeout=60)
        assert not done


def past_step(moment: datetime) -> timedelta:
    return (moment - EPOCH) % STEP


@given(st.timedeltas(timedelta(seconds=10), timedelta(minutes=30)), draws, moments)
def test_a_beat_comes_at_a_step_within_its_range(interval: timedelta, drawn: float, now: datetime) -> None:
    assume(interval // STEP - interval * SHORTEST_INTERVAL // STEP > 1)
    chosen = pause(interval, drawn, now)
    assert past_step(now + chosen) <= SPREAD
    assert interval * SHORTEST_INTERVAL <= chosen <= interval + SPREAD


@given(st.timedeltas(timedelta(), timedelta(seconds=9.9)) | st.just(timedelta(seconds=11)), draws, moments)
def test_a_range_without_a_choice_of_steps_is_drawn_from_evenly(interval: timedelta, drawn: float, now: datetime) -> None:
    assert pause(interval, drawn, now) == pause(interval, drawn) == interval - (interval - interval * SHORTEST_INTERVAL) * drawn


@pytest.mark.parametrize(("interval", "steps"), [(10, (8, 10)), (15, (12, 14)), (30, (24, 26, 28, 30))])
@pytest.mark.parametrize("late", [timedelta(milliseconds=1), SPREAD])
def test_who_came_back_together_has_a_choice_of_steps(interval: float, steps: tuple[int, ...], late: timedelta) -> None:
    now = EPOCH + timedelta(days=20_000) + late
    taken = [(pause(timedelta(seconds=interval), number / 1_000, now) + late) // STEP * STEP for number in range(1_000)]
    assert {step: taken.count(step) for step in sorted(set(taken))} == {
        timedelta(seconds=at): 1_000 // len(steps) for at in steps
    }


def test_the_spread_is_used_whole() -> None:
    now, ten = EPOCH + timedelta(days=20_000), timedelta(seconds=10)
    late = [past_step(now + pause(ten, number / 1_000, now)) for number in range(1_000)]
    assert min(late) < SPREAD / 10
    assert max(late) > SPREAD * 0.9


async def beats_of_agents(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[datetime]]:
    """When three agents beat, by the clock of their hub, which is ahead of theirs."""
    moments: list[datetime] = []
    beat = MemorySession.beat

    async def noted(self: MemorySession, *, available: bool | None) -> None:
        moments.append(self.hub.clock.now())
        await beat(self, available=available)

    monkeypatch.setattr(MemorySession, "beat", noted)
    agents = []
    for _ in range(3):
        world = Several(folder, 1)
        ahead = OffsetClock(world.clock)
        ahead.set_time(world.clock.now() + timedelta(seconds=0.7))
        world["a"].clock, world["a"].agent_clock = ahead, world.clock
        async with world.running():
            await world.until(lambda: len(moments) == 12)
        agents.append(moments[1:])  # the first one is sent at once
        moments.clear()
    return agents


async def test_agents_beat_in_step_by_the_clock_of_their_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for moments in await beats_of_agents(tmp_path, monkeypatch):
        assert [moment for moment in moments if past_step(moment) > SPREAD + LATE] == []
        between = [after - before for before, after in pairwise(moments)]
        assert timedelta(seconds=7.4) < min(between)
        assert max(between) < timedelta(seconds=10.1)


async def test_where_every_beat_is_its_own_request_nobody_is_in_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = frozenset(TransportFeature) - {TransportFeature.ACKNOWLEDGED_BEATS}
    monkeypatch.setattr(MemoryHubClient, "features", property(lambda _: others))
    found = [moment for moments in await beats_of_agents(tmp_path, monkeypatch) for moment in moments]
    assert len([moment for moment in found if past_step(moment) > SPREAD + LATE]) > len(found) / 2


class IllCluster(MemoryCluster):
    """Its API server refuses connections, or is stopped, from `ill_at` on: then no call is ever answered, health in time."""

    def __init__(self, ill_at: float, *, frozen: bool) -> None:
        super().__init__()
        self._ill_at, self._frozen = ill_at, frozen

    @property
    def _ill(self) -> bool:
        return asyncio.get_running_loop().time() >= self._ill_at

    async def health(self) -> ApiServerHealth:
        if self._ill and self._frozen:
            await asyncio.sleep(reports.PROBE_TIMEOUT.total_seconds())
        return ApiServerHealth(ok=not self._ill, status_code=None, detail="ill" if self._ill else "ok")

    async def nodes(self) -> Sequence[reports.NodeResources]:
        await asyncio.sleep(2)  # the freeze falls into it now and then
        if self._ill and self._frozen:
            await asyncio.Event().wait()
        return await super().nodes()


@pytest.mark.parametrize(("frozen", "within"), [(True, 35), (False, 28)])
def test_api_server_that_freezes_or_refuses_is_reported_in_seconds_though_reads_hang(*, frozen: bool, within: int) -> None:
    async def play(ill_at: float) -> float:
        loop = asyncio.get_running_loop()
        cluster, on = IllCluster(ill_at, frozen=frozen), session()
        watch = AvailabilityWatch(cluster, LoopClock(loop))
        status = StatusReconciler(on, cluster, watch, reports.ClusterClaimRules())
        status.accept(accepted=True)
        lease = controller(on, verdict=lambda: watch.verdict)
        lease.accept(accepted=True)
        on.hub.beat_interval = timedelta(hours=1)
        watch.listen(lease.send_now)
        async with running(lease):
            probing = asyncio.create_task(watch.run())
            while [each.status for report in on.reports[-1:] for each in report.conditions if each.type == AVAILABLE] != [
                FALSE
            ]:
                await status.reconcile(CHANGED)
                await asyncio.sleep(0.5)
            assert on.beats[-1] is False
            probing.cancel()
        return loop.time() - ill_at

    ill_at = [20 + tenth / 2 for tenth in range(12)]
    assert {at: seconds for at in ill_at if (seconds := in_virtual_time(play(at))) > within} == {}


async def test_running_agent_reports_a_frozen_api_server_in_seconds_though_its_reads_hang(tmp_path: Path) -> None:
    world = Several(tmp_path, 1, cluster=IllCluster(70, frozen=True))
    async with world.running():
        await world.until(lambda: world["a"].sessions and False in world["a"].session.beats)
    assert asyncio.get_running_loop().time() - 70 <= 35


async def test_of_two_probes_that_overlap_the_one_that_began_later_counts() -> None:
    answers = [(reports.PROBE_TIMEOUT, False), (timedelta(seconds=1), True)]

    class Overtaken(MemoryCluster):
        async def health(self) -> ApiServerHealth:
            takes, ok = answers.pop(0)
            await asyncio.sleep(takes.total_seconds())
            return ApiServerHealth(ok=ok, status_code=None, detail="")

    watch = AvailabilityWatch(Overtaken(), LoopClock(asyncio.get_running_loop()))
    late = asyncio.create_task(watch.probe())
    await asyncio.sleep(1)
    await watch.probe()
    await late
    assert (watch.verdict, watch.current.failing_since) == (True, None)


class Kept:
    """The controller with a cluster in memory."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.news = 0
        self.controller = ManagedNamespaceController(self.cluster, LABEL, self.changed)

    def changed(self) -> None:
        self.news += 1

    async def want(self, *wanted: reports.ManagedNamespace, deleting: bool = False) -> list[tuple[str, str]]:
        """After one look: name and reason of what is reported."""
        self.controller.want(wanted, deleting=deleting)
        await self.controller.reconcile(KEY)
        return [(each.namespace.name, each.condition.reason) for each in self.controller.reports]

    def labels(self) -> dict[str, str]:
        return {name: labels[LABEL] for name, labels in self.cluster.namespaces.items() if LABEL in labels}


def test_label_is_one_per_hub_and_cut_to_what_a_label_may_have() -> None:
    """OCM knows a hub by its URL alone, and 64 digits of a hash are one too many."""
    key, _, name = reports.hub_label(HubId(""), "https://hub.example.com:6443").partition("/")
    assert (key, name) == ("clusterset.open-cluster-management.io", sha256(b"https://hub.example.com:6443").hexdigest()[:63])
    assert (
        reports.hub_label(HUB_ID, "https://a")
        == reports.hub_label(HUB_ID, "https://b")
        != reports.hub_label(HubId(""), "https://a")
    )


async def test_wanted_namespaces_are_made_or_labelled_and_released_without_being_deleted() -> None:
    kept, other = Kept(), reports.hub_label(HubId("other"), "https://other")
    kept.cluster.namespaces |= {"b": {"team": "x"}, "theirs": {other: "true"}}
    assert await kept.want(A, B) == [("a", "NamespaceApplied"), ("b", "NamespaceApplied")]
    assert kept.cluster.namespaces == {
        "a": {LABEL: "true"},
        "b": {"team": "x", LABEL: "true"},
        "theirs": {other: "true"},  # of another hub
    }
    assert kept.news == 1
    await kept.want(A, B)
    assert kept.news == 1
    assert (await kept.want(B), kept.labels()) == ([("b", "NamespaceApplied")], {"a": "false", "b": "true"})
    for wanted, deleting in (((), False), ((A, B), True)):
        await kept.want(A, B)
        assert kept.labels() == {"a": "true", "b": "true"}
        await kept.want(*wanted, deleting=deleting)
        assert kept.labels() == {"a": "false", "b": "false"}


async def test_nothing_is_done_before_the_hub_has_said_what_it_wants_and_failures_are_reported() -> None:
    kept = Kept()
    kept.cluster.namespaces["a"] = {LABEL: "true"}
    await kept.controller.reconcile(KEY)
    assert kept.labels() == {"a": "true"}
    kept.cluster.fail = UnavailableError("away")
    await check_refusal_of(UnavailableError, kept.want(A))
    assert kept.controller.reports == ()
    kept.cluster.fail = None
    del kept.cluster.namespaces["a"]
    kept.cluster.refused_namespaces.add("a")
    assert await kept.want(A, B) == [("a", "NamespaceApplyFailed"), ("b", "NamespaceApplied")]
    kept.cluster.refused_namespaces.clear()
    assert await kept.want(A, B) == [("a", "NamespaceApplied"), ("b", "NamespaceApplied")]


async def test_the_agent_reports_namespaces_with_its_status_and_makes_a_lost_one_again(stage: Stage) -> None:
    stage.hub.namespaces = (A,)

    def reported() -> list[str]:
        reports = stage.hub.session.reports if stage.hub.sessions else []
        return [each.condition.reason for each in reports[-1].namespaces] if reports else []

    async with stage.running():
        await until(lambda: reported() == ["NamespaceApplied"])
        del stage.cluster.namespaces["a"]
        stage.scheduler.wake("managed-namespaces")
        await until(lambda: "a" in stage.cluster.namespaces)
        stage.hub.set_namespaces(B)
        await until(lambda: stage.hub.session.reports[-1].namespaces[:1] and reported() == ["NamespaceApplied"])
        await until(lambda: "b" in stage.cluster.namespaces and "true" not in stage.cluster.namespaces["a"].values())


async def test_a_cluster_gets_its_namespaces_once_accepted_and_one_that_fails_is_an_event_at_the_hub(stage: Stage) -> None:
    stage.hub.accept = False
    stage.hub.namespaces = (A, B)
    stage.cluster.refused_namespaces.add("b")
    async with stage.running():
        await until(lambda: "managed-namespaces" in stage.scheduler.jobs)
        stage.scheduler.wake("managed-namespaces")
        assert stage.cluster.namespaces == {}
        stage.hub.set_accepted(next(iter(stage.hub.clusters)), accepted=True)
        await until(lambda: "a" in stage.cluster.namespaces and stage.hub.session.news)
    (news,) = stage.hub.session.news
    assert (news.reason, news.type) == ("NamespaceApplyFailed", "Warning")


def test_a_condition_that_is_not_true_is_a_warning() -> None:
    assert reports.news_of(Condition("X", FALSE, "Failed", "why")) == reports.AgentEvent("Failed", "why", reports.WARNING)
    assert reports.news_of(Condition("X", TRUE, "Done", ""), "logs") == reports.AgentEvent("Done", "", reports.NORMAL, "logs")
    assert "--max-custom-cluster-claims" in reports.left_out(3, 20).message


async def test_the_same_news_is_reported_once_refused_news_are_lost_and_a_lost_session_ends_the_telling() -> None:
    link = session()
    telling = SessionEvents(link)
    running = asyncio.create_task(telling.run())
    for message in ("a", "a", "b", "b", "a"):
        telling.add(reports.AgentEvent("R", message))
    await until(lambda: [each.message for each in link.news] == ["a", "b", "a"])
    link.hub.faults["send_event"] = ForbiddenError("no right to it")
    telling.add(reports.AgentEvent("R", "c"))
    await asyncio.sleep(3600)
    assert not running.done()
    link.hub.faults["send_event"] = HubLostError("gone")
    telling.add(reports.AgentEvent("R", "d"))
    await check_refusal_of(HubLostError, running)


async def test_news_without_end_are_reported_slowly_and_the_oldest_give_way() -> None:
    link = session()
    telling = SessionEvents(link)
    for number in range(3 * EVENT_QUEUE):
        telling.add(reports.AgentEvent(f"R{number}", ""))
    running = asyncio.create_task(telling.run())
    await asyncio.sleep(1)
    assert len(link.news) == EVENT_BURST
    await asyncio.sleep(3600)
    running.cancel()
    assert [each.reason for each in link.news] == [f"R{number}" for number in range(2 * EVENT_QUEUE, 3 * EVENT_QUEUE)]


async def test_left_out_claims_are_an_event_and_new_annotations_but_no_labels_reach_a_joined_cluster(stage: Stage) -> None:
    """OCM's agent sends annotations only at the first join."""
    stage.cluster.set_claims([reports.ReportedClaim(name, "x") for name in "abc"])
    stage.options = replace(stage.options, labels={"site": "b"}, claims=reports.ClusterClaimRules(max_custom=2))
    async with stage.at_work():
        await until(lambda: stage.hub.session.news)
    assert stage.hub.session.news == [reports.left_out(1, 2)], "claims that are left out are an event at the hub"
    stage.options = replace(stage.options, annotations=NOTES, labels={"site": "c"})
    async with stage.at_work():
        (known,) = stage.hub.clusters.values()
        await until(lambda: known.annotations == NOTES)
        assert stage.hub.calls.count("ensure_cluster") == 2
    assert known.labels == {"site": "b"}


async def test_a_hub_that_does_not_let_an_agent_keep_its_cluster_is_asked_once(stage: Stage) -> None:
    stage.hub.faults["ensure_cluster"] = ForbiddenError("no right to it")
    credential = stage.hub.credential()
    hub = stage.hub.dial(None, ClientIdentity(credential.chain, credential.key))
    upkeep = ClusterReconciler(hub, MemoryCluster(), AgentNames(ClusterName("c1"), AgentId("bcdfg")), NOTES, ())
    for _ in range(3):
        with suppress(ForbiddenError):
            await upkeep.reconcile(UPKEEP)
    assert stage.hub.calls == ["ensure_cluster"]
