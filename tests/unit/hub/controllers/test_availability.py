"""Silence becomes Unknown exactly when a grace ends, and never for time in which nobody could be heard."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from hub.api.liveness import Beat
from hub.api.managedclusters import cluster as rules
from hub.controllers.clusters.availability import AvailabilityReconciler
from hub.registry.liveness import heartbeats
from hub.registry.managedclusters import service as clusters
from machinery.errors import ConflictError, InvalidError
from machinery.identity import ClusterName
from machinery.meta.conditions import AVAILABLE, UNKNOWN
from machinery.runtime.clock import ManualClock
from machinery.runtime.controller import Controller
from machinery.runtime.work_queue import WorkQueue
from tests.checks import present
from tests.fakes.controllers import work
from tests.unit.hub.conftest import failing, transactions_of
from tests.unit.hub.controllers.conftest import Hub

C1 = ClusterName("c1")
WINDOW = timedelta(seconds=1)
GRACE = timedelta(seconds=300)
SECOND = timedelta(seconds=1)


def judge(hub: Hub, *, hears: bool = True) -> Controller[str]:
    started = hub.clock.now()
    reconciler = AvailabilityReconciler(hub.store, window=WINDOW, since=lambda _tx: started if hears else None)
    return Controller("availability", reconciler, clock=hub.clock)


async def look(subject: Controller[str], cluster: ClusterName = C1) -> timedelta | None:
    return await work(subject, cluster)


def accepted(hub: Hub, *names: str) -> None:
    for name in names or ("c1",):
        hub.join(name)
        hub.accept(name)
        hub.store.transact(clusters.set_condition, ClusterName(name), rules.ACCEPTED, "test")


def beat(hub: Hub, name: str = "c1") -> None:
    hub.store.transact(heartbeats.flush, [Beat(ClusterName(name), timedelta(), available=True)])


def status(hub: Hub, name: str = "c1") -> str | None:
    condition = hub.condition(name, AVAILABLE)
    return condition.status if condition else None


async def test_unknown_is_written_exactly_when_the_grace_ends_and_once(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted(hub)
    hub.accept("c1", accepted=False)
    hub.store.transact(clusters.set_condition, C1, rules.DENIED, "test")  # a denied cluster is judged as before
    beat(hub)
    subject, written = judge(hub), transactions_of(hub.store, monkeypatch)
    assert await look(subject) == GRACE + WINDOW
    hub.clock.advance(GRACE)
    assert await work(subject) == WINDOW, "without any news"
    assert (status(hub) == UNKNOWN, written) == (False, [])
    hub.clock.advance(WINDOW)
    assert await work(subject) == GRACE
    condition = present(hub.condition("c1", AVAILABLE))
    assert condition.last_transition_time == hub.clock.now()
    assert (condition.status, condition.reason, condition.message) == (
        UNKNOWN,
        "ManagedClusterLeaseUpdateStopped",
        "Registration agent stopped updating its lease.",
    )
    before = hub.revision
    hub.clock.advance(GRACE)
    assert await look(subject) == GRACE
    assert (len(written), hub.revision) == (1, before), "a silence that goes on is written once"


async def test_beat_moves_the_end_of_the_grace_even_after_the_first_look(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted(hub)
    beat(hub)
    subject = judge(hub)
    hub.clock.advance(GRACE)
    beat(hub)
    hub.clock.advance(WINDOW)
    assert await look(subject) == GRACE
    assert status(hub) != UNKNOWN
    hub.clock.advance(GRACE)
    run = hub.store.run

    async def beaten(use_case: Any, *args: Any, **kwargs: Any) -> Any:
        beat(hub)
        return await run(use_case, *args, **kwargs)

    monkeypatch.setattr(hub.store, "run", beaten)
    assert await look(subject) == GRACE + WINDOW
    assert status(hub) != UNKNOWN


async def test_clusters_that_were_never_accepted_are_gone_or_cannot_be_heard_are_not_judged(hub: Hub) -> None:
    hub.join("c1")
    subject = judge(hub)
    hub.clock.advance(timedelta(days=1))
    assert await look(subject) is None
    assert status(hub) is None
    assert await look(subject, ClusterName("gone")) is None
    accepted(hub, "c2")
    beat(hub, "c2")
    hub.clock.advance(timedelta(days=1))
    deaf = judge(hub, hears=False)
    assert await look(deaf, ClusterName("c2")) == SECOND, "beats cannot be stored"
    assert status(hub, "c2") != UNKNOWN


async def test_many_that_fall_silent_together_share_their_commits(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"c{number}" for number in range(1, 251)]
    accepted(hub, *names)
    subject, written = judge(hub), transactions_of(hub.store, monkeypatch)
    await work(subject, *names)
    hub.clock.advance(GRACE + WINDOW)
    await work(subject)
    found = [hub.condition(name, AVAILABLE) for name in names]
    assert {condition.status for condition in found if condition} == {UNKNOWN}
    assert None not in found
    assert len(written) == 3


def fail(monkeypatch: pytest.MonkeyPatch, use_case: str, *names: str, error: Exception | None = None) -> Callable[[], None]:
    """Has this use case fail for these clusters until what is returned is called."""
    error = error or ConflictError("somebody else was faster")
    return failing(monkeypatch, heartbeats, use_case, error, lambda cluster: cluster in names)


@pytest.mark.parametrize("use_case", ["expire", "silence"])
async def test_one_that_fails_for_ever_holds_up_no_other(hub: Hub, monkeypatch: pytest.MonkeyPatch, use_case: str) -> None:
    accepted(hub, "c1", "c2", "c3")
    subject = judge(hub)
    hub.clock.advance(7 * SECOND)
    accepted(hub, "c4")
    mend = fail(monkeypatch, use_case, "c1")
    hub.clock.advance(GRACE + WINDOW - 7 * SECOND)
    with capture_logs() as lines:
        await work(subject, "c1", "c2", "c3", "c4")
    assert [line["error"] for line in lines] == ["1 of 4 failed, the last of them c1: somebody else was faster"]
    assert [status(hub, name) for name in ("c1", "c2", "c3", "c4")] == [None, UNKNOWN, UNKNOWN, None]
    for _ in range(14):  # c1 is tried all the time, less and less often
        hub.clock.advance(SECOND / 2)
        await work(subject)
    assert [status(hub, name) for name in ("c1", "c4")] == [None, UNKNOWN], "at its time, to the second"
    mend()
    hub.clock.advance(30 * SECOND)
    await work(subject)
    assert status(hub, "c1") == UNKNOWN


async def test_one_that_fails_is_tried_again_at_a_time_of_its_own(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted(hub, "c1", "c2")
    subject = judge(hub)
    fail(monkeypatch, "expire", "c1", error=InvalidError("it breaks a rule"))
    hub.clock.advance(GRACE + WINDOW)
    pauses = []
    subject.enqueue("c2")
    subject.enqueue("c1")
    for _ in range(16):
        pause = present(await work(subject))
        pauses.append(pause)
        hub.clock.advance(pause)
    assert pauses[0] <= timedelta(milliseconds=20)
    assert 15 * SECOND <= pauses[-1] <= 30 * SECOND


async def test_who_was_never_heard_of_has_a_reason_of_its_own(hub: Hub) -> None:
    accepted(hub)
    subject = judge(hub)
    hub.clock.advance(GRACE + WINDOW)
    await look(subject)
    condition = present(hub.condition("c1", AVAILABLE))
    assert (condition.status, condition.reason) == (UNKNOWN, "ManagedClusterNeverJoined")


def waiting(clock: ManualClock) -> WorkQueue[str]:
    queue = WorkQueue[str](clock)
    for name, seconds in (("a", 10), ("b", 12), ("c", 20)):
        queue.add_after(name, seconds * SECOND)
    return queue


def test_what_is_due_soon_comes_with_what_is_due_now_and_only_then() -> None:
    clock = ManualClock()
    queue = waiting(clock)
    clock.advance(9 * SECOND)
    queue.add("c")
    assert queue.take(10, ahead=5 * SECOND) == ("c",)
    queue.done("c")
    assert queue.pause() == SECOND
    queue.add_after("c", 11 * SECOND)
    clock.advance(SECOND)
    assert queue.take(10, ahead=5 * SECOND) == ("a", "b")
    assert queue.pause() == 10 * SECOND
    clock = ManualClock()
    queue = waiting(clock)
    queue.add("a")
    queue.done(queue.take(10))
    queue.add_after("a", 30 * SECOND)
    clock.advance(10 * SECOND)
    assert queue.take(10, ahead=5 * SECOND) == ()
    assert queue.pause() == 2 * SECOND


def test_times_that_were_replaced_are_forgotten_also_where_they_are_far_away() -> None:
    """A cluster with a lease of a day reports every minute, and is looked at each time."""
    clock = ManualClock()
    queue = waiting(clock)
    for _ in range(10_000):
        queue.add("a")
        queue.add("b")
        names = queue.take(10)
        queue.done(names)
        for name in names:
            queue.add_after(name, timedelta(days=5))
    assert len(queue._order) < 200
    clock.advance(20 * SECOND)
    assert queue.take(10) == ("c",)
    clock.advance(timedelta(days=5))
    assert set(queue.take(10)) == {"a", "b"}


def test_a_key_that_is_handled_is_not_taken_again_before_that_is_done_and_an_earlier_time_wins() -> None:
    clock = ManualClock()
    queue = WorkQueue[str](clock)
    queue.add("a")
    assert queue.take(10) == ("a",)
    queue.add("a")
    queue.add_after("a", SECOND)
    clock.advance(SECOND)
    assert queue.take(10) == ()
    queue.done(["a"])
    assert queue.take(10) == ("a",)
    queue.done(["a"])
    queue.add_after("a", SECOND)
    queue.add_after("a", 2 * SECOND)
    assert queue.pause() == SECOND
