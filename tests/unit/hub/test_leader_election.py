"""The election, its Lease, what a replica does while it leads, and for how long nobody leads."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from structlog.testing import capture_logs

from hub.api.meta.change import EVENTS
from hub.controllers.manager import ControllerManager
from hub.election.in_cluster import lease_on
from hub.election.locks import LeaseAndTerm, RowLock
from hub.extensions.settings import load
from hub.metrics.replica import add_leader
from hub.ports.liveness import Leaders
from hub.replica.leader_election import Leading
from hub.store.engine.timeouts import SessionLimits
from machinery.client.rest import KubeClient
from machinery.election import Candidate, Elector, Leadership, Lock, Term, TermEnd, Timings
from machinery.election.lock import KUBERNETES, OPENSHIFT
from machinery.errors import ForbiddenError, InvalidError, MusterError, NotFoundError, NotLeaderError, UnavailableError
from machinery.meta.conditions import HUB_ACCEPTED
from machinery.meta.timestamps import format_time
from machinery.observability.metrics import Registry
from machinery.runtime.clock import ManualClock
from machinery.runtime.tasks import GuardedTasks
from tests.checks import check_each, check_refusal, present
from tests.fakes.fleetwork import builder_of
from tests.fakes.inline_store import InlineLifeline, InlineStore
from tests.fakes.memory_lock import MemoryLock, Way
from tests.fakes.virtual_time import LoopClock, ManualScheduler, VirtualLoop, in_the_loops_time, in_virtual_time
from tests.unit.hub.controllers.conftest import Hub
from tests.unit.machinery.election.candidates import SOON, World, played

START = Hub().clock.now()
FAST = Timings(*(timedelta(milliseconds=each) for each in (600, 500, 50, 10)))
SETTINGS = load(
    {
        "database_url": "postgresql://hub@db/hub",
        "leader_elect_lease_duration": FAST.lease,
        "leader_elect_renew_deadline": FAST.renew_deadline,
        "leader_elect_retry_period": FAST.retry,
        "leader_elect_poll_period": FAST.poll,
    },
    None,
    {},
)
STEP = 0.01
PODS = "/api/v1/namespaces/muster/pods"
SETS, DEPLOYMENTS = "/apis/apps/v1/namespaces/muster/replicasets", "/apis/apps/v1/namespaces/muster/deployments"
OWNER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "hub", "uid": "uid-hub"}
T = TypeVar("T")
DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reference/leadership.md").read_text()
PHASES = [number / 8 * KUBERNETES.retry.total_seconds() for number in range(9)]
"""Seconds after a renewal at which the fault begins."""


@asynccontextmanager
async def running(hub: Hub, scheduler: ManualScheduler, lock: Lock | None = None) -> AsyncIterator[Leading]:
    leading = Leading(
        hub.store,
        lock or RowLock(InlineLifeline(hub.store)),
        lambda store: ControllerManager(builder_of(store, hub.clock, lambda _tx: START)),
        SETTINGS,
        "hub-0",
        clock=LoopClock(asyncio.get_running_loop()),
        scheduler=scheduler,
        on_end=lambda error: pytest.fail(str(error)),
    )
    async with GuardedTasks("election") as tasks:
        tasks.start("elector", leading.run())
        yield leading
        await leading.stop()


async def until(condition: Callable[[], object]) -> float:
    """How many seconds passed until it held."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with asyncio.timeout(3600):
        while not condition():  # noqa: ASYNC110 - in no time
            await asyncio.sleep(STEP)
    return loop.time() - begun


def events(hub: Hub) -> list[str]:
    stored = [stored for (kind, _), stored in hub.store.state.objects.items() if kind == EVENTS]
    return [event.document["message"] for event in stored if event.document["reason"] == "LeaderElection"]


def values(registry: Registry) -> dict[str, float]:
    series = (line.rsplit(" ", 1) for line in registry.text().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in series}


def overtake(hub: Hub) -> None:
    hub.store.transact(lambda tx: tx.leaders.take(tx.leaders.record(), Candidate("hub-1", "other"), FAST.lease))


@in_the_loops_time
async def test_a_leader_works_rests_when_another_leads_and_works_again() -> None:
    hub, scheduler = Hub(), ManualScheduler()
    async with running(hub, scheduler) as leading:
        await leading.begin()
        assert leading.snapshot()["leads"]
        hub.join("c1")
        hub.accept("c1")
        await until(lambda: hub.condition("c1", HUB_ACCEPTED) and events(hub))
        assert scheduler.jobs
        overtake(hub)
        await until(lambda: leading.leadership.term is None and not scheduler.jobs)
        assert not leading.waiting()
        hub.join("c2")
        hub.accept("c2")
        assert leading.snapshot()["leader"] in {"hub-0", "hub-1"}
        assert hub.condition("c2", HUB_ACCEPTED) is None
        await until(lambda: leading.leadership.term == 3)
        await until(lambda: hub.condition("c2", HUB_ACCEPTED))
        await until(lambda: len(events(hub)) == 3)
    late = format_time(START)
    assert events(hub) == [
        "hub-0 became leader in term 1: the lock had no holder before",
        f"hub-1 became leader in term 2, at {late}; the term ended before its cause was recorded",
        "hub-0 became leader in term 3: hub-1 did not renew it for 0.6 s",
    ]


@in_the_loops_time
async def test_what_befell_the_election_is_counted() -> None:
    hub, registry = Hub(), Registry()
    way = Way(RowLock(InlineLifeline(hub.store)))
    async with running(hub, ManualScheduler(), way) as leading:
        add_leader(registry, leading)
        assert values(registry)["muster_hub_leader"] == 0
        way.away = True
        await leading.begin()
        await until(lambda: leading.tally.failures)
        way.away = False
        await until(lambda: leading.leadership.term == 1)
        assert (values(registry)["muster_hub_leader"], values(registry)["muster_hub_leader_term"]) == (1, 1)
        await until(lambda: leading.tally.renewals > 1)
        assert values(registry)["muster_hub_leader_renewals_total"] >= 2
        held = leading.leadership.term
        leading.leadership.was_fenced(1)  # a write that the database refused
        await until(lambda: leading.leadership.term == 2)
        check_refusal(NotLeaderError, leading.leadership.require, held or 0)  # one of the term before
        way.swallows = True
        await until(lambda: leading.leadership.term is None)
        way.swallows = False
        await until(lambda: leading.leadership.term == 3)
        counted = values(registry)
        assert (counted["muster_hub_leader_gained_total"], counted['muster_hub_leader_lost_total{cause="DEPOSED"}']) == (3, 1)
        assert counted['muster_hub_leader_lost_total{cause="NOT_RENEWED"}'] == 1
        assert counted['muster_hub_leader_writes_refused_total{where="unsent"}'] >= 1
        assert counted['muster_hub_leader_writes_refused_total{where="fenced"}'] == 1
        assert counted["muster_hub_leader_lock_failures_total"] >= 2
    assert values(registry)['muster_hub_leader_lost_total{cause="STOPPED"}'] == 1


@in_the_loops_time
async def test_follower_and_a_replica_without_its_lock_are_ready_without_controllers_and_a_stop_frees_the_lock() -> None:
    hub, scheduler = Hub(), ManualScheduler()
    overtake(hub)
    async with running(hub, scheduler) as leading:
        await leading.begin()
        assert (leading.snapshot()["leads"], leading.snapshot()["leader"]) == (False, "hub-1")
        assert not scheduler.jobs
        assert not leading.waiting()
    hub = Hub()
    way = Way(RowLock(InlineLifeline(hub.store)))
    way.away = True
    async with running(hub, scheduler, way) as leading:
        async with asyncio.timeout(5):
            await leading.begin()
        assert not leading.snapshot()["leads"]
        way.away = False
        await until(lambda: leading.leadership.term)
        await leading.stop()
        record = present(hub.store.state.leader)
        assert (record.holder, record.term) == ("", 1)
        assert not scheduler.jobs


def owned(kind: str, name: str) -> dict[str, Any]:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-{name}"}
    return {"ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}]}


class Documents(KubeClient):
    """An API with these documents' metadata. `trouble`: what a path raises, as long as it does."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {
            f"{PODS}/hub-5d-x": owned("ReplicaSet", "hub-5d"),
            f"{SETS}/hub-5d": owned("Deployment", "hub"),
            f"{DEPLOYMENTS}/hub": {},
            f"{PODS}/alone": {},
        }
        self.trouble: dict[str, Callable[[], MusterError | None]] = {}
        self.made: list[dict[str, Any]] = []

    async def get(self, path: str, *_: Any, **__: Any) -> dict[str, Any]:
        if path in self.trouble and (error := self.trouble[path]()):
            raise error
        if path not in self.documents:
            raise NotFoundError(path)
        return {"metadata": self.documents[path]}

    async def create(self, path: str, body: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        assert path == "/apis/coordination.k8s.io/v1/namespaces/muster/leases"
        self.made.append(body)
        return {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}


def made(cluster: Documents, pod: str, name: str | None = None) -> float:
    """Has the Lease made for that pod, under the name that was given; how many seconds that took."""
    settings = load({"leader_elect_resource_name": name} if name else {}, None, {})

    async def reported() -> float:
        begun = asyncio.get_running_loop().time()
        lease = await lease_on(cluster, settings, "muster", pod, ManualClock())
        await lease.take(None, Candidate("one", "one-1"), timedelta(seconds=15))
        return asyncio.get_running_loop().time() - begun

    return in_virtual_time(reported())


def metadata(cluster: Documents) -> tuple[str, Any]:
    [lease] = cluster.made
    return lease["metadata"]["name"], lease["metadata"].get("ownerReferences")


def times(count: int, error: MusterError) -> Callable[[], MusterError | None]:
    left = iter([error] * count)
    return lambda: next(left, None)


def test_lease_is_named_and_owned_by_the_workload_of_the_pod_and_each_link_is_waited_for() -> None:
    cluster = Documents()
    assert (made(cluster, "hub-5d-x"), metadata(cluster)) == (0, ("hub", [OWNER]))

    def check(path: str, error: MusterError) -> None:
        cluster = Documents()
        cluster.trouble[path] = times(20, error)
        assert 15 < made(cluster, "hub-5d-x") < 30
        assert metadata(cluster) == ("hub", [OWNER])
        cluster.trouble[path] = times(1000, error)
        with pytest.raises(InvalidError, match=f"was not found within 30s .{error.message}.: name the Lease"):
            made(cluster, "hub-5d-x")

    errors = (UnavailableError("away"), ForbiddenError("not yet"), NotFoundError("not yet"))
    links = (f"{PODS}/hub-5d-x", f"{SETS}/hub-5d", f"{DEPLOYMENTS}/hub")
    check_each(check, [(path, error) for path in links for error in errors])


def test_a_pod_that_belongs_to_nothing_needs_a_name() -> None:
    cluster = Documents()
    check_refusal(InvalidError, made, cluster, "alone", match="belongs to no Deployment or StatefulSet: name the Lease")
    with capture_logs() as logged:
        made(cluster, "alone", "mine")
    assert metadata(cluster) == ("mine", None)
    assert "get no owner" in logged[-1]["event"]


def test_lease_with_a_name_has_the_owner_or_a_warning_that_it_has_none() -> None:
    cluster = Documents()
    cluster.trouble[f"{SETS}/hub-5d"] = times(1, UnavailableError("away"))
    check_refusal(UnavailableError, made, cluster, "hub-5d-x", "mine")
    assert cluster.made == [], "the elector tries again"
    made(cluster, "hub-5d-x", "mine")
    assert metadata(cluster) == ("mine", [OWNER])
    for error in (ForbiddenError("no right"), NotFoundError("no pod")):
        cluster = Documents()
        cluster.trouble[f"{SETS}/hub-5d"] = times(1, error)
        with capture_logs() as logged:
            made(cluster, "hub-5d-x", "mine")
        assert metadata(cluster) == ("mine", None)
        [line] = [line for line in logged if line["log_level"] == "warning"]
        assert (line["event"], line["kind"]) == ("the controller of this pod is not known: its objects get no owner", "Lease")


def held(timings: Timings) -> timedelta:
    return SessionLimits.of_lease(timings.lease).held


def killed(timings: Timings) -> timedelta:
    return timings.lease + timings.poll


def killed_with_a_lease(timings: Timings) -> timedelta:
    return timings.lease + timings.retry + timings.poll


def after_an_outage(timings: Timings) -> timedelta:
    return timings.attempt + timings.retry


ROWS: tuple[tuple[str, Callable[[Timings], timedelta]], ...] = (
    ("| a clean stop, a rolling update |", lambda timings: timings.poll),
    ("| the leader's process is killed, or its machine fails |", killed),
    ("| the leader is suspended, or has no connection to the database |", killed),
    ("| the leader is suspended or disconnected during a transaction |", lambda timings: killed(timings) + held(timings)),
    ("| one of the three events above, if the lock is a Kubernetes Lease |", killed_with_a_lease),
    ("| the database is unavailable for a short time |", lambda timings: timings.longest_outage),
    ("| the database is unavailable for longer |", after_an_outage),
)


def test_the_page_says_what_follows_from_the_timings() -> None:
    for begins, bound in ROWS:
        [line] = [line for line in PAGE.splitlines() if line.startswith(begins)]
        shown = [f"{bound(timings).total_seconds():g} s" for timings in (KUBERNETES, OPENSHIFT)]
        assert [cell.strip() for cell in line.split("|")[-3:-1]] == shown, begins


@pytest.mark.parametrize("how", ["away", "swallows"])
def test_after_a_long_outage_somebody_leads_as_soon_as_the_page_says(how: str) -> None:
    async def story(world: World) -> None:
        one, two = world.replica("one"), world.replica("two")
        gaps = []
        for phase in PHASES[::2]:
            await until(lambda: one.flag.term or two.flag.term)
            await asyncio.sleep(20)
            await fails(one.way, two.way, how=how, seconds=40 + 3.5 * phase)
            gaps.append(await until(lambda: one.flag.term or two.flag.term))
        assert max(gaps) <= after_an_outage(KUBERNETES).total_seconds() + STEP
        assert how == "away" or max(gaps) > KUBERNETES.attempt.total_seconds(), "no less is promised than can be"

    played(story)


async def fails(*ways: object, how: str, seconds: float) -> None:
    for way in ways:
        setattr(way, how, True)
    await asyncio.sleep(seconds)
    for way in ways:
        setattr(way, how, False)


class Line(InlineLifeline):
    """One candidate's way to the database; what ends it takes nothing back."""

    away = False

    async def ask(self, use_case: Callable[[Leaders], T]) -> T:
        if self.away:
            raise UnavailableError("the database does not answer")
        return await super().ask(use_case)


class ByLease:
    """Candidates for one Lease and the row behind it."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self.lease, self._store = MemoryLock(clock), InlineStore(clock)

    def candidate(self, name: str) -> tuple[asyncio.Task[None], Leadership, Line]:
        async def work(_term: Term) -> None:
            await asyncio.Event().wait()

        line, flag = Line(self._store), Leadership(self._clock)
        lock = LeaseAndTerm(self.lease, RowLock(line), clock=self._clock, every=KUBERNETES.retry)
        elector = Elector(lock, Candidate(name, f"{name}-1"), work, timings=KUBERNETES, clock=self._clock, leadership=flag)
        return asyncio.create_task(elector.run()), flag, line


async def ended(*candidates: asyncio.Task[None]) -> None:
    for candidate in candidates:
        candidate.cancel()
    await asyncio.wait(candidates)


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "cut off from the database"])
@in_the_loops_time
async def test_a_holder_of_a_lease_is_followed_no_later_than_the_page_says(*, is_killed: bool) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    gaps = []
    for phase in PHASES[::3]:
        world = ByLease(LoopClock(loop))
        leader, _, line = world.candidate("leader")
        await asyncio.sleep(phase)
        follower, flag, _ = world.candidate("follower")
        await asyncio.sleep(10 * KUBERNETES.retry.total_seconds() + SOON - phase)
        if is_killed:
            found = world.lease.record
            await ended(leader)
            world.lease.record = found
        line.away = True
        gaps.append(await until(lambda flag=flag: flag.term))  # type: ignore[misc]
        await ended(leader, follower)
    assert max(gaps) <= killed_with_a_lease(KUBERNETES).total_seconds() + STEP
    assert max(gaps) > killed(KUBERNETES).total_seconds(), "no less is promised than can be"


def test_the_runbook_names_every_cause_that_the_metric_tells() -> None:
    runbook = (DOCS / "how-to/runbooks/MusterHubLeaderChanges.md").read_text()
    assert [loss.name for loss in TermEnd if f"`{loss.name}`" not in runbook] == []
    named = {word for word in runbook.replace("`", " ` ").split() if word.isupper() and word.replace("_", "").isalpha()}
    assert named <= {loss.name for loss in TermEnd}
