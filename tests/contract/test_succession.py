"""What every store promises about changes of leader: each term is told by one Event in the end, whoever leads by then."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from hub.domain.change import EVENTS, Query
from hub.domain.event import Told
from hub.domain.succession import FACT, KEPT
from hub.election import FencedStore, RowLock
from hub.ports import Lifeline, Store, Transaction
from hub.services import namespaces, succession
from hub.store.lifeline import SqlLifeline
from machinery.clock import ManualClock
from machinery.election import Candidate, Leadership
from machinery.election.lock import Record
from machinery.errors import NotLeaderError
from machinery.timestamps import format_time
from tests.fakes.databases import Database, MemoryDatabase
from tests.fakes.memory_store import MemoryLifeline, MemoryStore

ONE, TWO = Candidate("one", "one-1"), Candidate("two", "two-1")
LEASE = timedelta(seconds=15)
ABOUT = {"apiVersion": "hub.test/v1", "kind": "HubLeader", "metadata": {"name": "hub"}}


@pytest.fixture
async def lock(database: Database, store: Store, clock: ManualClock) -> AsyncIterator[RowLock]:
    await store.run(namespaces.ensure_standing)
    line: Lifeline
    if isinstance(database, MemoryDatabase):
        assert isinstance(store, MemoryStore)
        line = MemoryLifeline(store)
    else:
        line = SqlLifeline(database.url, lease=LEASE, clock=clock)
    yield RowLock(line)
    await line.close()


async def tell(store: Store, clock: ManualClock, held: Record) -> None:
    """As the leader of that term does."""
    flag = Leadership(clock)
    flag.hold(held.term, clock.monotonic() + 10)
    ours = Told("", ABOUT, "LeaderElection", f"{held.holder} leads in term {held.term}")
    await FencedStore(store, flag, held.term).run(succession.tell, held.term, ours, "tester")


def told(tx: Transaction) -> list[tuple[str, int]]:
    """Every message, and how often it was told, in the order of the telling."""
    events = sorted(tx.objects.find(EVENTS, Query()).items, key=lambda stored: stored.revision)
    return [(str(event.document["message"]), event.document["count"]) for event in events]


async def test_a_term_is_told_once_however_often_its_leader_begins(store: Store, lock: RowLock, clock: ManualClock) -> None:
    held = await lock.take(None, ONE, LEASE)
    await tell(store, clock, held)
    await tell(store, clock, await lock.renew(held))
    assert await store.read(told) == [("one leads in term 1", 1)]


async def test_terms_that_ended_before_they_were_told_are_told_by_the_next_leader(
    store: Store, lock: RowLock, clock: ManualClock
) -> None:
    one = await lock.take(None, ONE, LEASE)
    began = format_time(clock.now())
    assert await lock.release(one)
    two = await lock.take(await lock.read(), TWO, LEASE)
    with pytest.raises(NotLeaderError):
        await tell(store, clock, one)
    assert await store.read(told) == [], "who leads no more tells nothing, and takes nothing from the next"
    clock.advance(timedelta(seconds=1))
    await tell(store, clock, await lock.take(two, ONE, LEASE))
    assert await store.read(told) == [
        (f"one became leader in term 1, at {began}: the term ended before it was told why", 1),
        (f"two became leader in term 2, at {began}: the term ended before it was told why", 1),
        ("one leads in term 3", 1),
    ]


async def test_of_very_many_terms_the_newest_are_told_and_how_many_are_left_out(
    store: Store, lock: RowLock, clock: ManualClock
) -> None:
    held = None
    for _ in range(KEPT + 7):
        held = await lock.take(held, ONE, LEASE)
    assert held is not None
    await tell(store, clock, held)
    events = await store.read(told)
    assert len(events) == 1 + KEPT
    assert events[0] == ("the 7 changes of leader before term 8 are left out", 1)
    assert events[1][0].startswith("one became leader in term 8, ")
    assert events[-1] == (f"one leads in term {KEPT + 7}", 1)
    following = await lock.take(held, TWO, LEASE)
    await tell(store, clock, following)
    assert (await store.read(told))[1 + KEPT :] == [(f"two leads in term {KEPT + 8}", 1)], "they are left out once"


@pytest.mark.parametrize("fact", ["no JSON", '{"terms": 1}', '{"terms": [{"of a later": "release"}]}'])
async def test_what_cannot_be_read_keeps_nobody_from_leading(
    store: Store, lock: RowLock, clock: ManualClock, fact: str
) -> None:
    one = await lock.take(None, ONE, LEASE)
    await lock.release(one)
    await store.run(lambda tx: tx.facts.set(FACT, fact))
    two = await lock.take(await lock.read(), TWO, LEASE)
    assert two.term == one.term + 1
    await tell(store, clock, two)
    assert await store.read(told) == [("two leads in term 2", 1)]
