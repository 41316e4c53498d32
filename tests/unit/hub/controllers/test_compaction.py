"""The controller that lets go of what is old: by age, by size, and by the room that is left; and what it tells."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from hub.controllers.compaction import Compaction
from hub.domain.event import Told
from hub.domain.history import FILLS_UP, FULL, SHORTENED, Keeping, Volume, warnings
from hub.services import history
from machinery.errors import ExpiredError
from tests.unit.hub.controllers.conftest import Hub

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
KEEPING = Keeping(HOUR, 30 * DAY, 2**30, HOUR, 90 * DAY, 90 * DAY, reserve=0)


def relabel(hub: Hub, times: int, every: timedelta) -> None:
    """A cluster that is accepted and denied in turns: two changes a time."""
    for _ in range(times):
        hub.accept("c1")
        hub.accept("c1", accepted=False)
        hub.clock.advance(every)


async def settle(subject: Compaction) -> int:
    """Until nothing more is due; how many steps that took."""
    steps = 1
    while await subject.reconcile("all") is not None:
        steps += 1
        assert steps < 1_000
    return steps


def reasons(told: Sequence[Told]) -> list[str]:
    return [each.reason for each in told]


async def test_the_past_is_kept_for_its_time_and_watches_for_theirs(hub: Hub) -> None:
    hub.join("c1")
    relabel(hub, 40, DAY)
    subject = Compaction(hub.store, KEEPING)
    await settle(subject)
    assert subject.standing is not None
    assert subject.standing.began == hub.clock.now() - 30 * DAY
    assert hub.store.transact(lambda tx: tx.changes.position(tx.now - 31 * DAY))
    with pytest.raises(ExpiredError):
        hub.store.transact(lambda tx: tx.changes.position(tx.now - 32 * DAY))
    with pytest.raises(ExpiredError):
        hub.store.transact(lambda tx: tx.changes.since(tx.changes.position(tx.now - 2 * DAY)))


async def test_a_log_that_is_too_large_loses_its_oldest_past_and_nothing_a_watch_needs(hub: Hub) -> None:
    told: list[Told] = []
    hub.join("c1")
    relabel(hub, 20, DAY)
    everything = Compaction(hub.store, KEEPING)
    await settle(everything)
    assert everything.standing is not None
    half = everything.standing.ledger.bytes // 2
    subject = Compaction(hub.store, replace(KEEPING, history_bytes=half), told.append)
    await settle(subject)
    assert subject.standing is not None
    ledger = subject.standing.ledger
    assert ledger.bytes <= half
    assert reasons(told) == [SHORTENED]
    relabel(hub, 1, timedelta())
    newest = hub.revision
    await settle(Compaction(hub.store, replace(KEEPING, history_bytes=0)))
    assert [change.revision for change in hub.store.transact(lambda tx: tx.changes.since(newest - 2))] == [newest - 1, newest]


async def test_a_disk_that_fills_up_costs_history_and_is_told(hub: Hub) -> None:
    told: list[Told] = []
    hub.join("c1")
    relabel(hub, 5, DAY)
    subject = Compaction(hub.store, replace(KEEPING, reserve=100), told.append)
    for free, expected in ((200, []), (199, [FILLS_UP]), (99, [SHORTENED, FULL]), (300, [])):
        hub.store.state.free = free
        told.clear()
        await settle(subject)
        assert reasons(told) == expected
    ledger = hub.store.transact(lambda tx: tx.changes.ledger())
    assert ledger.floor == ledger.compacted, "with no room at all nothing is kept but what watches need"


async def test_each_transaction_passes_a_portion(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.join("c1")
    relabel(hub, 10, DAY)
    monkeypatch.setattr(history, "PASSED_AT_ONCE", 2)
    subject = Compaction(hub.store, replace(KEEPING, history=timedelta()))
    assert await settle(subject) >= 10
    ledger = hub.store.transact(lambda tx: tx.changes.ledger())
    assert (ledger.compacted, ledger.floor) == (hub.revision, hub.revision)


def test_a_server_that_does_not_say_what_is_free_warns_of_nothing() -> None:
    assert list(warnings(replace(KEEPING, reserve=2**40), Volume(2**40), early=False)) == []
    assert [told.reason for told in warnings(replace(KEEPING, reserve=9), Volume(100, 5, 10), early=False)] == [FILLS_UP]
