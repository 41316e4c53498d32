"""What every store promises about leaders: one holder, rising terms, fenced writes, and one Event for each term."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from hub.api.events import EventRecord
from hub.api.hubreplicas import MOST_TERMS, UNREPORTED_TERMS
from hub.api.meta.change import EVENTS
from hub.election.fence import FencedStore
from hub.election.locks import RowLock
from hub.ports import Store, Transaction
from hub.ports.liveness import LeaderLockConnection
from hub.registry import namespaces
from hub.registry.hubreplicas import service as succession
from hub.store.writer.leader_lock_connection import SqlLeaderLockConnection
from machinery.election import Candidate, Leadership, Lock
from machinery.election.lock import LockRecord
from machinery.errors import ConflictError, NotLeaderError, UnavailableError
from machinery.meta.objects import Query
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal_of, present
from tests.fakes.databases import SqlDatabase
from tests.fakes.memory_lock import MemoryLock

ONE, TWO = Candidate("one", "one-1"), Candidate("two", "two-1")
LEASE = timedelta(seconds=15)


@pytest.fixture
async def lifeline(database: SqlDatabase, clock: ManualClock) -> AsyncIterator[LeaderLockConnection]:
    line = SqlLeaderLockConnection(database.url, lease=LEASE, clock=clock)
    yield line
    await line.close()


@pytest.fixture(params=["row", "memory"])
def lock(request: pytest.FixtureRequest, lifeline: LeaderLockConnection, clock: ManualClock) -> Lock:
    """The fake that the elector's tests stand on is held to the same."""
    return RowLock(lifeline) if request.param == "row" else MemoryLock(clock)


async def test_lock_is_taken_once_for_what_was_seen_and_renewed_by_its_own_time(lock: Lock, clock: ManualClock) -> None:
    assert await lock.read() is None
    taken = await lock.take(None, ONE, LEASE)
    assert taken == await lock.read()
    assert (taken.holder, taken.incarnation, taken.term, taken.transitions) == ("one", "one-1", 1, 0)
    assert (taken.lease, taken.acquired_at, taken.renewed_at) == (LEASE, clock.now(), clock.now())
    await check_refusal_of(ConflictError, lock.take(None, TWO, LEASE))
    clock.advance(timedelta(seconds=2))
    renewed = await lock.renew(taken)
    assert renewed.version != taken.version
    assert renewed == replace(taken, version=renewed.version, renewed_at=clock.now())
    seen = await lock.renew(taken)
    assert seen == await lock.read(), "an answer that was lost costs nothing: the holder renews again"
    await lock.take(seen, TWO, LEASE)
    await check_refusal_of(ConflictError, lock.take(seen, ONE, LEASE))


async def test_only_the_holder_of_a_term_renews_or_releases_and_terms_only_rise(lock: Lock) -> None:
    mine = await lock.take(None, ONE, LEASE)
    theirs = await lock.take(mine, TWO, LEASE)
    await check_refusal_of(ConflictError, lock.renew(mine))
    assert not await lock.release(mine)
    assert await lock.read() == theirs
    again = await lock.take(theirs, ONE, LEASE)
    await check_refusal_of(ConflictError, lock.renew(mine))
    assert await lock.read() == again, "the same process in an earlier term is another"
    assert await lock.release(again)
    assert not await lock.release(again)
    await check_refusal_of(ConflictError, lock.renew(again))
    left = present(await lock.read())
    assert (left.holder, left.term) == ("", 3)
    last = await lock.take(left, Candidate("one", "one-2"), LEASE)
    same = await lock.take(last, Candidate("one", "one-3"), LEASE)
    terms = [(each.term, each.transitions) for each in (mine, theirs, again, last, same)]
    assert terms == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3)], "transitions count holders, terms count takings"


def _write(tx: Transaction) -> None:
    tx.facts.set("written", "yes")


def _written(tx: Transaction) -> str | None:
    return tx.facts.get("written")


@pytest.fixture
def flag(clock: ManualClock) -> Leadership:
    return Leadership(clock)


async def test_leader_writes_in_its_term_alone(
    store: Store, lifeline: LeaderLockConnection, flag: Leadership, clock: ManualClock
) -> None:
    lock = RowLock(lifeline)
    first = await lock.take(None, ONE, LEASE)
    flag.hold(first.term, clock.monotonic() + 10)
    left_behind = FencedStore(store, flag, first.term)
    await left_behind.run(lambda tx: tx.facts.set("first", "yes"))
    assert (await left_behind.read(lambda tx: tx.facts.get("first")), flag.refused, flag.fenced) == ("yes", 0, 0)
    second = await lock.take(first, TWO, LEASE)
    await check_refusal_of(NotLeaderError, left_behind.run(_write), match="not committed")
    assert await store.read(_written) is None, "refused inside its transaction"
    assert flag.term is None, "who was fenced leads no more"
    assert (flag.refused, flag.fenced) == (0, 1)
    third = await lock.take(second, ONE, LEASE)
    flag.hold(third.term, clock.monotonic() + 10)
    await check_refusal_of(NotLeaderError, left_behind.run(_write))
    assert (flag.refused, flag.fenced) == (1, 1)
    await FencedStore(store, flag, third.term).run(_write)
    assert await store.read(_written) == "yes"
    for _ in range(2):
        await lifeline.close()
    await check_refusal_of(UnavailableError, lifeline.ask(lambda leaders: leaders.record()))


async def test_follower_reads_sends_no_write_and_closes_nothing(store: Store, flag: Leadership, clock: ManualClock) -> None:
    fenced = FencedStore(store, flag, 1)
    for _ in range(2):
        await check_refusal_of(NotLeaderError, fenced.run(_write), match="nothing was sent")
        flag.hold(1, clock.monotonic() + 10)
        clock.advance(timedelta(seconds=11))
    assert await fenced.read(_written) is None
    assert (flag.refused, flag.fenced) == (2, 0)
    await fenced.check()
    assert (await fenced.wait_for_change(0, timedelta()), await anext(fenced.follow(0))) == (0, ())
    await fenced.close()
    await store.check()


ABOUT = {"apiVersion": "hub.test/v1", "kind": "HubLeader", "metadata": {"name": "hub"}}


@pytest.fixture
async def row_lock(lifeline: LeaderLockConnection, store: Store) -> RowLock:
    await store.run(namespaces.ensure_predefined)
    return RowLock(lifeline)


async def tell(store: Store, clock: ManualClock, held: LockRecord) -> None:
    """As the leader of that term does."""
    flag = Leadership(clock)
    flag.hold(held.term, clock.monotonic() + 10)
    ours = EventRecord("", ABOUT, "LeaderElection", f"{held.holder} leads in term {held.term}")
    await FencedStore(store, flag, held.term).run(succession.record_leader_terms, held.term, ours, "tester")


def recorded(tx: Transaction) -> list[tuple[str, int]]:
    """Every message and how often it was recorded, in order."""
    events = sorted(tx.objects.find(EVENTS, Query()).items, key=lambda stored: stored.revision)
    return [(str(event.document["message"]), event.document["count"]) for event in events]


async def test_a_term_is_reported_once_however_often_its_leader_begins(
    store: Store, row_lock: RowLock, clock: ManualClock
) -> None:
    held = await row_lock.take(None, ONE, LEASE)
    for _ in range(2):
        held = await row_lock.renew(held)
        await tell(store, clock, held)
    assert await store.read(recorded) == [("one leads in term 1", 1)]


async def test_ended_terms_not_reported_are_reported_by_the_next_leader(
    store: Store, row_lock: RowLock, clock: ManualClock
) -> None:
    one, began = await row_lock.take(None, ONE, LEASE), format_time(clock.now())
    assert await row_lock.release(one)
    two = await row_lock.take(await row_lock.read(), TWO, LEASE)
    await check_refusal_of(NotLeaderError, tell(store, clock, one))
    assert await store.read(recorded) == [], "a former leader records nothing, and takes no record from its successor"
    clock.advance(timedelta(seconds=1))
    await tell(store, clock, await row_lock.take(two, ONE, LEASE))
    assert await store.read(recorded) == [
        (f"one became leader in term 1, at {began}; the term ended before its cause was recorded", 1),
        (f"two became leader in term 2, at {began}; the term ended before its cause was recorded", 1),
        ("one leads in term 3", 1),
    ]


async def test_of_many_terms_the_newest_are_reported_others_counted(
    store: Store, row_lock: RowLock, clock: ManualClock
) -> None:
    held = None
    for _ in range(MOST_TERMS + 7):
        held = await row_lock.take(held, ONE, LEASE)
    await tell(store, clock, present(held))
    events = await store.read(recorded)
    assert (len(events), events[0]) == (1 + MOST_TERMS, ("7 changes of leader before term 8 are not listed", 1))
    assert events[1][0].startswith("one became leader in term 8, ")
    assert events[-1] == (f"one leads in term {MOST_TERMS + 7}", 1)
    await tell(store, clock, await row_lock.take(held, TWO, LEASE))
    assert (await store.read(recorded))[1 + MOST_TERMS :] == [(f"two leads in term {MOST_TERMS + 8}", 1)], "left out once"


async def test_what_cannot_be_read_keeps_nobody_from_leading(store: Store, row_lock: RowLock, clock: ManualClock) -> None:
    expected = []
    for term, fact in enumerate(("no JSON", '{"terms": 1}', '{"terms": [{"of a later": "release"}]}'), 1):
        await store.run(lambda tx, fact: tx.facts.set(UNREPORTED_TERMS, fact), fact)
        held = await row_lock.take(await row_lock.read(), ONE, LEASE)
        await tell(store, clock, held)
        await row_lock.release(held)
        expected.append((f"one leads in term {term}", 1))
        assert await store.read(recorded) == expected
