"""What every store promises about who leads: one holder at a time, terms that only rise, no write in a term that is over."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from hub.domain.namespace import HUB
from hub.election import FencedStore, RowLock
from hub.ports import Lifeline, Store, Transaction
from hub.services import namespaces
from hub.store.lifeline import SqlLifeline
from machinery.clock import ManualClock
from machinery.election import Candidate, Leadership, Lock
from machinery.errors import ConflictError, NotLeaderError, UnavailableError
from tests.fakes.databases import Database, MemoryDatabase
from tests.fakes.memory_lock import MemoryLock
from tests.fakes.memory_store import MemoryLifeline, MemoryStore

ONE, TWO = Candidate("one", "one-1"), Candidate("two", "two-1")
LEASE = timedelta(seconds=15)


@pytest.fixture
async def lifeline(database: Database, store: Store, clock: ManualClock) -> AsyncIterator[Lifeline]:
    line: Lifeline
    if isinstance(database, MemoryDatabase):
        assert isinstance(store, MemoryStore)
        line = MemoryLifeline(store)
    else:
        line = SqlLifeline(database.url, lease=LEASE, clock=clock)
    yield line
    await line.close()


@pytest.fixture(params=["row", "memory"])
def lock(request: pytest.FixtureRequest, lifeline: Lifeline, clock: ManualClock) -> Lock:
    """The fake that the elector's tests stand on is held to the same."""
    return RowLock(lifeline) if request.param == "row" else MemoryLock(clock)


async def test_nobody_holds_a_lock_that_was_never_taken(lock: Lock) -> None:
    assert await lock.read() is None


async def test_who_takes_the_lock_is_in_it_with_the_lock_s_time(lock: Lock, clock: ManualClock) -> None:
    taken = await lock.take(None, ONE, LEASE)
    assert taken == await lock.read()
    assert (taken.holder, taken.incarnation, taken.term, taken.transitions) == ("one", "one-1", 1, 0)
    assert (taken.lease, taken.acquired_at, taken.renewed_at) == (LEASE, clock.now(), clock.now())


async def test_of_two_that_saw_the_same_one_takes_it(lock: Lock) -> None:
    await lock.take(None, ONE, LEASE)
    with pytest.raises(ConflictError):
        await lock.take(None, TWO, LEASE)
    seen = await lock.read()
    await lock.take(seen, TWO, LEASE)
    with pytest.raises(ConflictError):
        await lock.take(seen, ONE, LEASE)


async def test_a_renewal_changes_the_version_and_the_time_and_nothing_else(lock: Lock, clock: ManualClock) -> None:
    taken = await lock.take(None, ONE, LEASE)
    clock.advance(timedelta(seconds=2))
    renewed = await lock.renew(taken)
    assert renewed.version != taken.version
    assert renewed == replace(taken, version=renewed.version, renewed_at=clock.now())
    assert await lock.renew(taken) == await lock.read(), "an answer that was lost costs nothing: the holder renews again"


async def test_nobody_renews_or_releases_what_another_has_taken(lock: Lock) -> None:
    mine = await lock.take(None, ONE, LEASE)
    theirs = await lock.take(mine, TWO, LEASE)
    with pytest.raises(ConflictError):
        await lock.renew(mine)
    assert not await lock.release(mine)
    assert await lock.read() == theirs
    again = await lock.take(theirs, ONE, LEASE)
    with pytest.raises(ConflictError):
        await lock.renew(mine)
    assert await lock.read() == again, "the same process in an earlier term is another"


async def test_a_released_lock_keeps_its_term_and_the_next_is_higher(lock: Lock) -> None:
    mine = await lock.take(None, ONE, LEASE)
    assert await lock.release(mine)
    assert not await lock.release(mine)
    with pytest.raises(ConflictError):
        await lock.renew(mine)
    left = await lock.read()
    assert left is not None
    assert (left.holder, left.term) == ("", 1)
    again = await lock.take(left, ONE, LEASE)
    assert (again.term, again.transitions) == (2, 1)


async def test_transitions_count_holders_and_terms_count_takings(lock: Lock) -> None:
    first = await lock.take(None, ONE, LEASE)
    same = await lock.take(first, Candidate("one", "one-2"), LEASE)
    other = await lock.take(same, TWO, LEASE)
    assert [(each.term, each.transitions) for each in (first, same, other)] == [(1, 0), (2, 0), (3, 1)]


async def test_a_closed_way_to_the_lock_says_so(lifeline: Lifeline) -> None:
    await lifeline.close()
    await lifeline.close()
    with pytest.raises(UnavailableError):
        await lifeline.ask(lambda leaders: leaders.record())


def _write(tx: Transaction) -> None:
    tx.facts.set("written", "yes")


def _written(tx: Transaction) -> str | None:
    return tx.facts.get("written")


@pytest.fixture
def flag(clock: ManualClock) -> Leadership:
    return Leadership(clock)


async def test_the_leader_writes(store: Store, lifeline: Lifeline, flag: Leadership, clock: ManualClock) -> None:
    term = (await RowLock(lifeline).take(None, ONE, LEASE)).term
    flag.hold(term, clock.monotonic() + 10)
    fenced = FencedStore(store, flag, term)
    await fenced.run(_write)
    assert await fenced.read(_written) == "yes"
    assert (flag.refused, flag.fenced) == (0, 0)


async def test_who_does_not_lead_reads_and_its_writes_are_not_sent(store: Store, flag: Leadership, clock: ManualClock) -> None:
    fenced = FencedStore(store, flag, 1)
    for _ in range(2):
        with pytest.raises(NotLeaderError, match="nothing was sent"):
            await fenced.run(_write)
        flag.hold(1, clock.monotonic() + 10)
        clock.advance(timedelta(seconds=11))
    assert await fenced.read(_written) is None
    assert (flag.refused, flag.fenced) == (2, 0)
    await fenced.check()
    assert [batch async for batch in _first(fenced)] == [()]


async def _first(store: Store) -> AsyncIterator[object]:
    revision = await store.wait_for_change(0, timedelta())
    async for batch in store.follow(revision):
        yield tuple(batch)
        return


async def test_a_write_of_an_earlier_term_is_refused_inside_its_transaction(
    store: Store, lifeline: Lifeline, flag: Leadership, clock: ManualClock
) -> None:
    lock = RowLock(lifeline)
    mine = await lock.take(None, ONE, LEASE)
    flag.hold(mine.term, clock.monotonic() + 10)
    await lock.take(mine, TWO, LEASE)
    with pytest.raises(NotLeaderError, match="not committed"):
        await FencedStore(store, flag, mine.term).run(_write)
    assert await store.read(_written) is None
    assert flag.term is None, "who was fenced leads no more"
    assert (flag.refused, flag.fenced) == (0, 1)


async def test_what_a_term_left_behind_does_not_write_in_the_next_term_of_the_same_process(
    store: Store, lifeline: Lifeline, flag: Leadership, clock: ManualClock
) -> None:
    lock = RowLock(lifeline)
    first = await lock.take(None, ONE, LEASE)
    left_behind = FencedStore(store, flag, first.term)
    second = await lock.take(first, ONE, LEASE)
    flag.hold(second.term, clock.monotonic() + 10)
    with pytest.raises(NotLeaderError):
        await left_behind.run(_write)
    assert (flag.refused, flag.fenced) == (1, 0)
    await FencedStore(store, flag, second.term).run(_write)


async def test_closing_what_controllers_have_closes_nothing(store: Store, flag: Leadership) -> None:
    await FencedStore(store, flag, 1).close()
    await store.run(namespaces.ensure_standing)
    assert await store.read(namespaces.get, HUB) is not None
