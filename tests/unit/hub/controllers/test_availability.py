"""Silence becomes Unknown exactly when a grace ends, and never for time in which nobody could be heard."""

from datetime import timedelta
from typing import Any

import pytest

from hub.controllers.availability import Availability
from hub.domain.heartbeat import Beat
from hub.services import clusters, heartbeats
from machinery.conditions import AVAILABLE, UNKNOWN, Condition
from machinery.identity import ClusterName
from tests.unit.hub.controllers.conftest import Hub

C1 = ClusterName("c1")
WINDOW = timedelta(seconds=1)
GRACE = timedelta(seconds=300)
SECOND = timedelta(seconds=1)


def judge(hub: Hub) -> Availability:
    started = hub.clock.now()
    return Availability(hub.store, window=WINDOW, since=lambda _now: started)


def accepted(hub: Hub) -> None:
    hub.join("c1")
    hub.accept("c1")
    hub.store.transact(
        clusters.set_condition, C1, Condition("HubAcceptedManagedCluster", "True", "HubClusterAdminAccepted", ""), "test"
    )


def beat(hub: Hub) -> None:
    hub.store.transact(heartbeats.flush, [Beat(C1, timedelta(), available=True)])


def status(hub: Hub) -> str | None:
    condition = hub.condition("c1", AVAILABLE)
    return condition.status if condition else None


async def test_it_looks_again_exactly_when_the_grace_ends(hub: Hub) -> None:
    accepted(hub)
    beat(hub)
    subject = judge(hub)
    assert await subject.reconcile(C1) == GRACE + WINDOW
    hub.clock.advance(GRACE)
    assert await subject.reconcile(C1) == WINDOW
    assert status(hub) != UNKNOWN
    hub.clock.advance(WINDOW)
    await subject.reconcile(C1)
    condition = hub.condition("c1", AVAILABLE)
    assert condition is not None
    assert (condition.status, condition.reason, condition.message) == (
        UNKNOWN,
        "ManagedClusterLeaseUpdateStopped",
        "Registration agent stopped updating its lease.",
    )


async def test_a_beat_moves_the_end_of_the_grace(hub: Hub) -> None:
    accepted(hub)
    beat(hub)
    subject = judge(hub)
    hub.clock.advance(GRACE)
    beat(hub)
    hub.clock.advance(WINDOW)
    assert await subject.reconcile(C1) == GRACE
    assert status(hub) != UNKNOWN


async def test_after_a_start_nobody_is_judged_before_a_full_grace(hub: Hub) -> None:
    accepted(hub)
    beat(hub)
    hub.clock.advance(timedelta(days=3))
    subject = judge(hub)
    assert await subject.reconcile(C1) == GRACE + WINDOW
    hub.clock.advance(GRACE + WINDOW - SECOND)
    await subject.reconcile(C1)
    assert status(hub) != UNKNOWN
    hub.clock.advance(SECOND)
    await subject.reconcile(C1)
    assert status(hub) == UNKNOWN


async def test_a_silence_that_goes_on_is_written_once(hub: Hub) -> None:
    accepted(hub)
    subject = judge(hub)
    hub.clock.advance(GRACE + WINDOW)
    await subject.reconcile(C1)
    before = hub.revision
    hub.clock.advance(GRACE)
    await subject.reconcile(C1)
    assert hub.revision == before


async def test_a_cluster_that_was_never_accepted_is_not_judged(hub: Hub) -> None:
    hub.join("c1")
    subject = judge(hub)
    hub.clock.advance(timedelta(days=1))
    assert await subject.reconcile(C1) is None
    assert status(hub) is None


async def test_nobody_is_silent_while_beats_cannot_be_stored(hub: Hub) -> None:
    accepted(hub)
    beat(hub)
    hub.clock.advance(timedelta(days=1))
    assert await Availability(hub.store, window=WINDOW, since=lambda _now: None).reconcile(C1) == SECOND
    assert status(hub) != UNKNOWN


async def test_a_cluster_that_is_gone_is_forgotten(hub: Hub) -> None:
    assert await judge(hub).reconcile(ClusterName("gone")) is None


async def test_it_writes_only_when_a_silence_is_news(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted(hub)
    beat(hub)
    subject, written = judge(hub), list[str]()
    run = hub.store.run

    async def noted(use_case: Any, *args: Any, **kwargs: Any) -> Any:
        written.append("transaction")
        return await run(use_case, *args, **kwargs)

    monkeypatch.setattr(hub.store, "run", noted)
    assert await subject.reconcile(C1) == GRACE + WINDOW
    assert written == []
    hub.clock.advance(GRACE + WINDOW)
    assert await subject.reconcile(C1) == GRACE
    assert written == ["transaction"]
    assert status(hub) == UNKNOWN
    hub.clock.advance(GRACE)
    assert await subject.reconcile(C1) == GRACE
    assert written == ["transaction"]


async def test_a_beat_that_is_stored_after_the_first_look_keeps_the_cluster(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted(hub)
    beat(hub)
    subject = judge(hub)
    hub.clock.advance(GRACE + WINDOW)
    run = hub.store.run

    async def beaten(use_case: Any, *args: Any, **kwargs: Any) -> Any:
        beat(hub)
        return await run(use_case, *args, **kwargs)

    monkeypatch.setattr(hub.store, "run", beaten)
    assert await subject.reconcile(C1) == GRACE + WINDOW
    assert status(hub) != UNKNOWN
