"""The controller that lets go of what is old: by age, by size, and by the room that is left; and what it tells."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from hub.api import history as rules
from hub.api.auditrecords import AuditEntry, AuditFields, AuditQuery
from hub.api.events import EventRecord
from hub.api.history import BYTES_OF_A_ROW, RetentionPeriods, Volume, warnings
from hub.controllers.clock_guard import SETTLED, ClockGuard
from hub.controllers.hub import retention as compaction_module
from hub.controllers.hub.retention import PAUSE, Compaction
from hub.registry import auditrecords as audit
from machinery.errors import ExpiredError, UnavailableError
from tests.checks import check_refusal, check_refusal_of, present
from tests.unit.hub.conftest import transactions_of
from tests.unit.hub.controllers.conftest import Hub

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
KEEPING = RetentionPeriods(HOUR, 30 * DAY, 2**30, HOUR, 90 * DAY, 90 * DAY, reserve=0)


def relabel(hub: Hub, times: int, every: timedelta) -> None:
    """A cluster that is accepted and denied in turns: two changes a time."""
    for _ in range(times):
        hub.accept("c1")
        hub.accept("c1", accepted=False)
        hub.clock.advance(every)


def compaction(
    hub: Hub, keeping: RetentionPeriods = KEEPING, tell: Callable[[EventRecord], None] = lambda _told: None
) -> Compaction:
    """Believes the clock from the beginning."""
    return Compaction(hub.store, keeping, ClockGuard(hub.clock, timedelta()), tell)


def entry_of(at: datetime) -> AuditEntry:
    return AuditEntry("one", 1, at, AuditFields("ann", "get"), b"{}")


async def settle(subject: Compaction, until: timedelta = timedelta()) -> int:
    """Until nothing more is due now; how many steps that took. `until`: it comes again after that or later."""
    steps = 1
    while (again := await subject.reconcile("all")) is not None:
        if again > PAUSE:
            assert again >= until
            return steps
        steps += 1
        assert steps < 1_000
    return steps


def reasons(told: Sequence[EventRecord]) -> list[str]:
    return [each.reason for each in told]


async def test_the_past_is_kept_for_its_time_and_watches_for_theirs(hub: Hub) -> None:
    hub.join("c1")
    relabel(hub, 40, DAY)
    subject = compaction(hub)
    await settle(subject)
    assert present(subject.status).began == hub.clock.now() - 30 * DAY
    assert hub.store.transact(lambda tx: tx.changes.position(tx.now - 31 * DAY))
    check_refusal(ExpiredError, hub.store.transact, lambda tx: tx.changes.position(tx.now - 32 * DAY))
    check_refusal(ExpiredError, hub.store.transact, lambda tx: tx.changes.since(tx.changes.position(tx.now - 2 * DAY)))
    hub.join("c2")
    hub.clock.advance(HOUR - timedelta(seconds=1))
    newest = hub.revision
    await settle(subject)
    assert hub.store.transact(lambda tx: tx.changes.since(newest - 1))[-1].key.name == "c2"


async def test_a_log_that_is_too_large_loses_its_oldest_past_and_nothing_a_watch_needs(hub: Hub) -> None:
    told: list[EventRecord] = []
    hub.join("c1")
    relabel(hub, 20, DAY)
    everything = compaction(hub)
    await settle(everything)
    half = present(everything.status).ledger.bytes // 2
    subject = compaction(hub, replace(KEEPING, history_bytes=half), told.append)
    await settle(subject)
    assert present(subject.status).ledger.bytes <= half
    assert reasons(told) == [rules.SHORTENED]
    relabel(hub, 1, timedelta())
    newest = hub.revision
    await settle(compaction(hub, replace(KEEPING, history_bytes=0)))
    assert [change.revision for change in hub.store.transact(lambda tx: tx.changes.since(newest - 2))] == [newest - 1, newest]


async def test_a_disk_that_fills_up_costs_history_and_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[EventRecord] = []
    hub.join("c1")
    relabel(hub, 5, DAY)
    subject = compaction(hub, replace(KEEPING, reserve=100), told.append)
    hub.store.failure = UnavailableError("the database is away")
    await check_refusal_of(UnavailableError, subject.reconcile("all"))
    hub.store.failure = None
    await settle(subject)
    assert hub.store.transact(lambda tx: tx.changes.ledger()).compacted, "what was due is due again"
    for free, expected in ((200, []), (199, [rules.FILLS_UP]), (99, [rules.SHORTENED, rules.FULL]), (300, [])):
        monkeypatch.setattr("hub.store.writer.transaction.volume", lambda _connection, free=free: Volume(0, free=free))
        told.clear()
        await settle(subject)
        assert reasons(told) == expected
    ledger = hub.store.transact(lambda tx: tx.changes.ledger())
    assert ledger.floor == ledger.compacted, "with no room at all nothing is kept but what watches need"


async def test_each_transaction_passes_a_portion_and_no_part_asks_in_vain(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps the log takes: whoever asks holds the lock that all writers wait for."""
    hub.join("c1")
    relabel(hub, 100, timedelta(seconds=1))
    hub.clock.advance(2 * HOUR)
    monkeypatch.setattr(compaction_module, "CHANGES_AT_ONCE", 20)
    written = transactions_of(hub.store, monkeypatch)
    steps = await settle(compaction(hub, replace(KEEPING, history=timedelta())))
    of_the_log, others = 4, 3
    assert steps >= 10
    assert len(written) <= of_the_log * steps + others
    ledger = hub.store.transact(lambda tx: tx.changes.ledger())
    assert (ledger.compacted, ledger.floor) == (hub.revision, hub.revision)


async def test_a_clock_that_is_a_year_ahead_for_two_minutes_costs_nothing(hub: Hub) -> None:
    hub.join("c1")
    hub.store.transact(lambda tx: tx.audit.add([entry_of(hub.clock.now())]))
    relabel(hub, 10, timedelta(minutes=1))
    before = hub.store.transact(lambda tx: tx.changes.ledger())
    subject = Compaction(hub.store, KEEPING, ClockGuard(hub.clock))
    for jump in (timedelta(), 400 * DAY, timedelta(), -400 * DAY):
        hub.clock.set_forward(jump)
        await settle(subject, until=SETTLED - timedelta(minutes=2))
        hub.clock.advance(timedelta(minutes=2))
    after = hub.store.transact(lambda tx: tx.changes.ledger())
    assert (after.compacted, after.floor) == (before.compacted, before.floor)
    assert len(hub.store.transact(lambda tx: tx.audit.find(AuditQuery()))) == 1
    hub.clock.advance(2 * HOUR)
    await settle(subject)
    assert hub.store.transact(lambda tx: tx.changes.ledger()).compacted, "what is old goes, later"


async def test_what_a_clock_that_was_ahead_has_written_holds_up_nothing(hub: Hub) -> None:
    hub.join("c1")
    hub.clock.set_forward(400 * DAY)
    relabel(hub, 5, timedelta(seconds=1))
    ahead = hub.revision
    hub.store.transact(lambda tx: tx.audit.add([entry_of(hub.clock.now())]))
    hub.clock.set_forward(-400 * DAY)
    hub.store.transact(lambda tx: tx.audit.add([replace(entry_of(hub.clock.now()), sequence=2)]))
    relabel(hub, 2, DAY)
    for passed, left in ((KEEPING.records, [1]), (390 * DAY, [1]), (10 * DAY, [])):
        hub.clock.advance(passed)
        await settle(compaction(hub))
        assert hub.store.transact(lambda tx: tx.changes.ledger()).compacted >= ahead
        assert [entry.sequence for entry in hub.store.transact(lambda tx: tx.audit.find(AuditQuery()))] == left


async def test_audit_records_above_their_size_go_early_and_not_for_strangers(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_module, "STRANGERS_KEPT", 100)
    monkeypatch.setattr(compaction_module, "SHORTENED_AT_ONCE", 2)
    known = [replace(entry_of(hub.clock.now()), sequence=number, document=b"x" * 800) for number in range(1, 11)]
    for entries in (
        known,
        [replace(entry_of(hub.clock.now()), replica="one.refused", sequence=number) for number in range(1, 501)],
    ):
        hub.store.transact(lambda tx, entries: tx.audit.add(entries), entries)
    others = [replace(each, replica="two", fields=AuditFields("bob", "get")) for each in known[:5]]
    told: list[EventRecord] = []

    async def left(size: int) -> tuple[int, int]:
        await settle(compaction(hub, replace(KEEPING, records_bytes=size), told.append))
        found = hub.store.transact(lambda tx: tx.audit.find(AuditQuery()))
        replicas = [entry.replica for entry in found]
        return replicas.count("one"), replicas.count("one.refused")

    assert (await left(20_000), told) == ((10, 100), [])
    assert (await left(10 * (BYTES_OF_A_ROW + 800)), await left(9_999)) == ((10, 100), (8, 100))
    assert reasons(told) == [rules.AUDIT_FILLS_UP, rules.AUDIT_SHORTENED]
    hub.store.transact(lambda tx: tx.audit.add([replace(each, at=each.at - DAY) for each in others]))
    assert await left(9_999) == (4, 100), "the caller with most of them loses its own first, although others' are older"
    assert sum(size.records for size in hub.store.transact(audit.sizes)[1].values()) == 9


def test_a_server_that_does_not_say_what_is_free_warns_of_nothing() -> None:
    assert list(warnings(replace(KEEPING, reserve=2**40), Volume(2**40), early=False)) == []
    assert [told.reason for told in warnings(replace(KEEPING, reserve=9), Volume(100, 5, 10), early=False)] == [rules.FILLS_UP]
