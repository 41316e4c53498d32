"""The lock and the fence on a real PostgreSQL, and replicas that got different answers about their lock."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from hollow.cluster import HollowCluster
from hub.election.locks import LeaseAndTerm, RowLock
from hub.extensions.settings import load
from hub.ports import Store, Transaction
from hub.replica.leader_election import Leading, leadership
from hub.store import SqlStore
from hub.store.engine.engine import READERS
from hub.store.writer.leader_lock_connection import SqlLeaderLockConnection
from machinery.client.leaselock import LeaseLock
from machinery.client.rest import KubeClient
from machinery.election import Candidate, LockRecord
from machinery.errors import ConflictError, NotLeaderError
from machinery.runtime.clock import SystemClock
from tests.checks import check_refusal_of, present
from tests.fakes.postgres import postgres_path
from tests.fakes.virtual_time import ManualScheduler
from tests.integration.election.conftest import fenced

pytestmark = pytest.mark.postgres
ONE, TWO = Candidate("one", "one-1"), Candidate("two", "two-1")
A_WHILE = 0.3


@pytest.fixture
async def locks(url: str, store: SqlStore) -> AsyncIterator[tuple[RowLock, RowLock]]:
    """The same lock, as two replicas have it. After the store, which makes the tables."""
    del store
    lines = [SqlLeaderLockConnection(url, lease=LEASE) for _ in range(2)]
    yield RowLock(lines[0]), RowLock(lines[1])
    for line in lines:
        await line.close()


class Held:
    """A use case that writes, and then waits in its transaction until it may continue."""

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
    mine, held = await locks[0].take(None, ONE, LEASE), Held()
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
    await check_refusal_of(NotLeaderError, fenced(store, mine).run(lambda tx: tx.facts.set("written", "late")))
    assert await store.read(lambda tx: tx.facts.get("written")) == "yes"


async def test_load_on_the_store_delays_neither_renewal_nor_health(store: SqlStore, locks: tuple[RowLock, RowLock]) -> None:
    mine, go_on = await locks[0].take(None, ONE, LEASE), threading.Event()
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
        line = SqlLeaderLockConnection(over_it, lease=LEASE)
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
    lines = [SqlLeaderLockConnection(url, lease=LEASE) for _ in range(5)]
    try:
        for _ in range(10):
            seen = await RowLock(lines[0]).read()
            takings = (RowLock(line).take(seen, Candidate(f"r{index}", str(index)), LEASE) for index, line in enumerate(lines))
            outcomes = await asyncio.gather(*takings, return_exceptions=True)
            assert [isinstance(outcome, LockRecord) for outcome in outcomes].count(True) == 1, outcomes
            assert present(await RowLock(lines[0]).read()).term == (seen.term if seen else 0) + 1
    finally:
        for line in lines:
            await line.close()


OURS, LEASE = Candidate("new", "new-1"), timedelta(seconds=15)


class Writing:
    """What a leader does in a term, to the elector: it has the store that it may write with."""

    controllers = ()
    transitions = None

    def __init__(self, store: Store) -> None:
        self.store = store

    def start_periodic(self, _scheduler: object) -> None: ...
    def stop_periodic(self, _scheduler: object) -> None: ...
    def begin(self, _term: int, _ours: object) -> None: ...
    async def start(self, _tasks: object) -> None: ...

    async def write(self) -> bool:
        """Whether that was committed."""
        try:
            await self.store.run(lambda tx: tx.facts.set("written", "yes"))
        except NotLeaderError:
            return False
        return True


async def running(stack: AsyncExitStack, url: str, store: Store, replica: str, name: str) -> tuple[Leading, list[Writing]]:
    """A replica as `hub serve --leader-elect-resource-name` composes it, and its terms."""
    settings = load({"database_url": url, "leader_elect_resource_name": name}, None, {})
    terms: list[Writing] = []

    def in_term(fenced: Store) -> Any:
        terms.append(Writing(fenced))
        return terms[-1]

    def ended(error: Exception) -> None:
        raise AssertionError from error

    leading = await stack.enter_async_context(
        leadership(settings, replica, store, in_term, clock=SystemClock(), scheduler=ManualScheduler(), on_end=ended)
    )
    await leading.begin()
    return leading, terms


async def test_replicas_with_different_names_compete_for_one_lock(url: str, store: SqlStore) -> None:
    async with AsyncExitStack() as stack:
        one, ones = await running(stack, url, store, "hub-0", "muster-hub")
        two, twos = await running(stack, url, store, "hub-1", "hub")
        assert [await each.write() for each in ones] == [True]
        assert (one.leadership.term, two.leadership.term, twos, two.snapshot()["leader"]) == (1, None, [], "hub-0")


async def written(store: SqlStore, held: LockRecord) -> bool:
    return await Writing(fenced(store, held)).write()


async def test_whoever_wins_a_lease_beside_a_holder_of_the_row_ends_its_writes_and_is_seen_by_who_waits_for_the_row(
    row: RowLock, store: SqlStore, hollow_cluster: HollowCluster
) -> None:
    clock, by_row = SystemClock(), await row.take(await row.read(), Candidate("hub-0", "a"), LEASE)
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as client:
        lease = LeaseLock(client, "default", "muster-hub", clock=clock)
        by_lease = LeaseAndTerm(lease, row, clock=clock, every=timedelta(seconds=2))
        taken = await by_lease.take(await by_lease.read(), OURS, LEASE)
        assert (await written(store, by_row), await written(store, taken)) == (False, True)
        await check_refusal_of(ConflictError, row.renew(by_row))
        seen = await row.read()
        await by_lease.renew(taken)
        renewed = await row.read()
        assert seen is not None
        assert renewed is not None
        assert (renewed.holder, renewed.version != seen.version) == ("new", True), "who waits for the row sees that it is held"
        again = await row.take(renewed, Candidate("hub-0", "a"), LEASE)
        assert (await written(store, taken), await written(store, again)) == (False, True)
        await check_refusal_of(ConflictError, by_lease.renew(taken))
