"""Silence becomes Unknown exactly when a grace ends, and never for time in which nobody could be heard."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from hub.api.liveness import Beat
from hub.api.managedclusters import cluster as rules
from hub.controllers.batch import TOGETHER
from hub.controllers.clusters.availability import AvailabilityController
from hub.controllers.delaying_queue import DelayingQueue
from hub.registry.liveness import heartbeats
from hub.registry.managedclusters import service as clusters
from machinery.errors import ConflictError, InvalidError
from machinery.identity import ClusterName
from machinery.meta.conditions import AVAILABLE, UNKNOWN
from machinery.runtime.clock import ManualClock
from machinery.runtime.controller import PartlyFailedError
from tests.checks import present
from tests.unit.hub.conftest import failing, transactions_of
from tests.unit.hub.controllers.conftest import Hub

C1 = ClusterName("c1")
WINDOW = timedelta(seconds=1)
GRACE = timedelta(seconds=300)
SECOND = timedelta(seconds=1)


def judge(hub: Hub) -> AvailabilityController:
    started = hub.clock.now()
    return AvailabilityController(hub.store, hub.clock, window=WINDOW, since=lambda _tx: started)


async def look(subject: AvailabilityController, cluster: ClusterName = C1) -> timedelta | None:
    subject.wants(cluster)
    return await subject.reconcile(TOGETHER)


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
    assert await subject.reconcile(TOGETHER) == WINDOW, "without any news"
    assert (status(hub) == UNKNOWN, written) == (False, [])
    hub.clock.advance(WINDOW)
    assert await subject.reconcile(TOGETHER) == GRACE
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
    deaf = AvailabilityController(hub.store, hub.clock, window=WINDOW, since=lambda _tx: None)
    assert await look(deaf, ClusterName("c2")) == SECOND, "beats cannot be stored"
    assert status(hub, "c2") != UNKNOWN


async def test_many_that_fall_silent_together_share_their_commits(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"c{number}" for number in range(1, 251)]
    accepted(hub, *names)
    subject, written = judge(hub), transactions_of(hub.store, monkeypatch)
    for name in names:
        subject.wants(ClusterName(name))
    await subject.reconcile(TOGETHER)
    hub.clock.advance(GRACE + WINDOW)
    await subject.reconcile(TOGETHER)
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
    for name in ("c1", "c2", "c3", "c4"):
        subject.wants(ClusterName(name))
    hub.clock.advance(GRACE + WINDOW - 7 * SECOND)
    with pytest.raises(PartlyFailedError, match="1 of 4 failed, the last of them c1: somebody else was faster"):
        await subject.reconcile(TOGETHER)
    assert [status(hub, name) for name in ("c1", "c2", "c3", "c4")] == [None, UNKNOWN, UNKNOWN, None]
    for _ in range(14):  # c1 is tried all the time, less and less often
        hub.clock.advance(SECOND / 2)
        with suppress(PartlyFailedError):
            await subject.reconcile(TOGETHER)
    assert [status(hub, name) for name in ("c1", "c4")] == [None, UNKNOWN], "at its time, to the second"
    mend()
    hub.clock.advance(30 * SECOND)
    await subject.reconcile(TOGETHER)
    assert status(hub, "c1") == UNKNOWN


async def test_one_that_fails_is_tried_again_at_a_time_of_its_own(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted(hub, "c1", "c2")
    subject = judge(hub)
    fail(monkeypatch, "expire", "c1", error=InvalidError("it breaks a rule"))
    hub.clock.advance(GRACE + WINDOW)
    pauses = []
    for name in ("c1", "c2"):
        subject.wants(ClusterName(name))
    for _ in range(16):
        with pytest.raises(PartlyFailedError) as failed:
            await subject.reconcile(TOGETHER)
        pause = present(failed.value.look_again)
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


A, B, C = (ClusterName(name) for name in "abc")


def waiting(clock: ManualClock) -> DelayingQueue:
    agenda = DelayingQueue(clock)
    for name, seconds in ((A, 10), (B, 12), (C, 20)):
        agenda.wait(name, seconds * SECOND)
    return agenda


def test_what_is_due_soon_comes_with_what_is_due_now_and_only_then() -> None:
    clock = ManualClock()
    agenda = waiting(clock)
    clock.advance(9 * SECOND)
    agenda.news([C])
    assert agenda.take(10, ahead=5 * SECOND) == (C,)
    assert agenda.pause() == SECOND
    agenda.wait(C, 11 * SECOND)
    clock.advance(SECOND)
    assert agenda.take(10, ahead=5 * SECOND) == (A, B)
    assert agenda.pause() == 10 * SECOND
    clock = ManualClock()
    agenda = waiting(clock)
    agenda.wait(A, 30 * SECOND)
    clock.advance(10 * SECOND)
    assert agenda.take(10, ahead=5 * SECOND) == ()
    assert agenda.pause() == 2 * SECOND


def test_times_that_were_replaced_are_forgotten_also_where_they_are_far_away() -> None:
    """A cluster with a lease of a day reports every minute, and is looked at each time."""
    clock = ManualClock()
    agenda = waiting(clock)
    for _ in range(10_000):
        agenda.news([A, B])
        for name in agenda.take(10):
            agenda.wait(name, timedelta(days=5))
    assert agenda.remembered < 200
    clock.advance(20 * SECOND)
    assert agenda.take(10) == (C,)
    clock.advance(timedelta(days=5))
    assert set(agenda.take(10)) == {A, B}
