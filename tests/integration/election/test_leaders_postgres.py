"""The lock and the fence on a real PostgreSQL: who waits for whom, who must not, and what a cut costs."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import text

from hub.election import RowLock
from hub.ports import Transaction
from hub.store import SqlStore
from hub.store.engine.engine import READERS
from hub.store.writer.leader_lock_connection import SqlLifeline
from machinery.election import Candidate, LockRecord
from machinery.errors import NotLeaderError
from tests.fakes.postgres_path import postgres_path
from tests.integration.election.conftest import fenced

pytestmark = pytest.mark.postgres
ONE, TWO = Candidate("one", "one-1"), Candidate("two", "two-1")
LEASE = timedelta(seconds=15)
A_WHILE = 0.3


@pytest.fixture
async def locks(url: str, store: SqlStore) -> AsyncIterator[tuple[RowLock, RowLock]]:
    """The same lock, as two replicas have it. After the store, which makes the tables."""
    del store
    lines = [SqlLifeline(url, lease=LEASE) for _ in range(2)]
    yield RowLock(lines[0]), RowLock(lines[1])
    for line in lines:
        await line.close()


class Held:
    """A use case that writes, and then stands still in its transaction until it is told to go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, tx: Transaction) -> None:
        tx.facts.set("written", "yes")
        self.begun.set()
        self.go_on.wait()


WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


def _waits(tx: Transaction) -> bool:
    """Whether a session waits for a lock of another."""
    return bool(tx.objects._connection.execute(WAITING).scalar_one())  # type: ignore[attr-defined]


async def test_who_takes_the_lock_waits_for_the_leader_s_transaction_and_a_renewal_does_not(
    store: SqlStore, locks: tuple[RowLock, RowLock]
) -> None:
    mine = await locks[0].take(None, ONE, LEASE)
    held = Held()
    writing = asyncio.create_task(fenced(store, mine).run(held))
    await asyncio.to_thread(held.begun.wait)
    renewed = await locks[0].renew(mine)
    assert renewed.version != mine.version
    mine = renewed
    taking = asyncio.create_task(locks[1].take(mine, TWO, LEASE))
    while not await store.read(_waits):
        assert not taking.done(), "the transaction has the term"
    held.go_on.set()
    await writing
    assert (await taking).term == mine.term + 1
    with pytest.raises(NotLeaderError):
        await fenced(store, mine).run(lambda tx: tx.facts.set("written", "late"))
    assert await store.read(lambda tx: tx.facts.get("written")) == "yes"


async def test_load_on_the_store_holds_up_neither_a_renewal_nor_a_look_at_health(
    store: SqlStore, locks: tuple[RowLock, RowLock]
) -> None:
    mine = await locks[0].take(None, ONE, LEASE)
    go_on = threading.Event()
    busy = [asyncio.create_task(store.read(lambda _tx: go_on.wait())) for _ in range(5 * READERS)]
    busy += [asyncio.create_task(store.run(lambda _tx: go_on.wait())) for _ in range(20)]
    await asyncio.sleep(0)
    for _ in range(10):
        mine = await locks[0].renew(mine)
    await store.check()
    go_on.set()
    await asyncio.gather(*busy)


async def test_a_question_that_is_given_up_does_not_hold_up_the_next(url: str, store: SqlStore) -> None:
    del store
    async with postgres_path(url) as (way, over_it):
        line = SqlLifeline(over_it, lease=LEASE)
        lock = RowLock(line)
        mine = await lock.take(None, ONE, LEASE)
        way.silence()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(A_WHILE):
                await lock.renew(mine)
        way.reroute()
        assert (await lock.renew(mine)).term == mine.term
        await line.close()


async def test_of_many_that_take_at_once_one_does(url: str, store: SqlStore) -> None:
    del store
    lines = [SqlLifeline(url, lease=LEASE) for _ in range(5)]
    try:
        for _ in range(10):
            seen = await RowLock(lines[0]).read()
            takings = (
                RowLock(line).take(seen, Candidate(f"r{number}", str(number)), LEASE) for number, line in enumerate(lines)
            )
            outcomes = await asyncio.gather(*takings, return_exceptions=True)
            assert [isinstance(outcome, LockRecord) for outcome in outcomes].count(True) == 1, outcomes
            now = await RowLock(lines[0]).read()
            assert now is not None
            assert now.term == (seen.term if seen else 0) + 1
    finally:
        for line in lines:
            await line.close()
