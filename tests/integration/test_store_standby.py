"""A PostgreSQL and its synchronous standby: behind one address, which may lead to either, and when the standby is away."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url, text

from hub.election.locks import RowLock
from hub.ports import Transaction
from hub.store import SqlStore
from hub.store.engine.engine import parse_url, reading_engine, writing_engine
from hub.store.engine.timeouts import DEFAULT, SessionLimits
from hub.store.migrate import migrate_database
from hub.store.writer.leader_lock_connection import SqlLeaderLockConnection
from machinery.election import Candidate, Elector, Leadership, Timings
from machinery.election.leader_term import Term
from machinery.errors import UnavailableError
from machinery.runtime.clock import SystemClock
from tests.fakes.databases import until_ready
from tests.fakes.postgres_path import Way, postgres_path
from tests.integration.stores import names, put

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer  # only where the package is installed

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

TIMINGS = Timings(
    lease=timedelta(seconds=1.5),
    renew_deadline=timedelta(seconds=1),
    retry=timedelta(milliseconds=100),
    poll=timedelta(milliseconds=100),
)
POLL = timedelta(milliseconds=50)
IMPATIENT = SessionLimits.of_lease(TIMINGS.lease)
"""Of a hub with such a lease: a session that stands still in a transaction for a second is ended, on a busy machine too."""


@dataclass(frozen=True, slots=True)
class Place:
    """Two servers, and the way that leads to one of them."""

    primary: "PostgresServer"
    standby: "PostgresServer"
    way: Way
    url: str

    def asking_for(self, servers: str) -> str:
        """The URL of an operator who says which servers will do."""
        return make_url(self.url).update_query_dict({"target_session_attrs": servers}).render_as_string(hide_password=False)


@pytest.fixture
async def place(replicated_servers: tuple["PostgresServer", "PostgresServer"]) -> AsyncIterator[Place]:
    primary, standby = replicated_servers
    await asyncio.to_thread(migrate_database, parse_url(primary.url))  # with more patience than the stores here have
    async with postgres_path(primary.url) as (way, url):
        yield Place(primary, standby, way, url)


def asked(server: "PostgresServer", question: str) -> Any:
    """What one server says, whichever it is."""
    engine = writing_engine(parse_url(f"{server.url}&target_session_attrs=any"))
    try:
        with engine.connect() as connection:
            return connection.execute(text(question)).scalar_one()
    finally:
        engine.dispose()


async def stands_still(place: Place) -> None:
    """The standby has all that there is now. From now on it confirms what it gets, and shows none of it."""
    written = asked(place.primary, "SELECT pg_current_wal_lsn()")
    while not asked(place.standby, f"SELECT pg_last_wal_replay_lsn() >= '{written}'"):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
    asked(place.standby, "SELECT pg_wal_replay_pause()::text")
    while asked(place.standby, "SELECT pg_get_wal_replay_pause_state()") != "paused":  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


async def lead(_term: Term) -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def opened(stack: AsyncExitStack, url: str, limits: SessionLimits = DEFAULT) -> SqlStore:
    store = SqlStore(url, poll=POLL, session=limits)
    stack.push_async_callback(store.close)
    await store.open()
    return store


def candidate(stack: AsyncExitStack, url: str, name: str) -> tuple[Elector, Leadership]:
    """Runs for the lock as a replica does."""
    clock, line = SystemClock(), SqlLeaderLockConnection(url, lease=TIMINGS.lease)
    stack.push_async_callback(line.close)
    flag = Leadership(clock)
    elector = Elector(RowLock(line), Candidate(name, f"{name}-1"), lead, timings=TIMINGS, clock=clock, leadership=flag)
    running = asyncio.create_task(elector.run())

    async def ended() -> None:
        await elector.stop()
        await running

    stack.push_async_callback(ended)
    return elector, flag


async def led(flags: Sequence[Leadership], *, by_somebody: bool) -> None:
    while any(flag.term is not None for flag in flags) is not by_somebody:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


async def tried(elector: Elector, times: int) -> None:
    """Returns when it has looked so many times more, in vain or not."""
    before = elector.tally.polls
    while elector.tally.polls < before + times:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


async def test_hub_led_to_the_standby_is_unready_until_it_reaches_the_primary(place: Place, stack: AsyncExitStack) -> None:
    """Also where the operator's URL lets in a server that takes no writes."""
    store = await opened(stack, place.url)
    for url in (place.url, place.asking_for("any")):
        async with AsyncExitStack() as candidates:
            electors, flags = zip(*(candidate(candidates, url, name) for name in ("one", "two")), strict=True)
            await led(flags, by_somebody=True)
            place.way.lead_to(place.standby.folder)
            place.way.cut()
            with pytest.raises(UnavailableError, match="is a standby of another"):
                await store.check()
            await led(flags, by_somebody=False)
            for elector in electors:
                await tried(elector, 3)
            place.way.lead_to(place.primary.folder)
            await led(flags, by_somebody=True)
            await store.check()


async def test_what_was_written_is_read_and_a_standby_that_is_behind_loses_no_log(place: Place, stack: AsyncExitStack) -> None:
    """Also where the operator's URL lets in a server that takes no writes, and behind a pooler."""

    def warned(tx: Transaction) -> str:
        put(tx, "new")
        for sql in WARNINGS.split("\n\n"):
            tx.objects._connection.execute(text(sql))  # type: ignore[attr-defined]
        return "done"

    store = await opened(stack, place.asking_for("any"))
    await stands_still(place)
    place.way.lead_to(place.standby.folder)
    place.way.cut()
    await asyncio.gather(*(store.read(names) for _ in range(10)))
    place.way.lead_to(place.primary.folder)
    assert await store.run(warned) == "done", "PostgreSQL warns of many things at a commit: they make it not doubtful"
    for found in await asyncio.gather(*(store.read(names) for _ in range(10))):
        assert found == ["new"]
    before, store._reading = store._reading, reading_engine(parse_url(f"{place.standby.url}&target_session_attrs=any"))
    for number in range(20):
        await store.run(put, f"c{number}")
    tail = store._tail
    assert tail is not None
    for _ in range(3):
        await tail._catch_up()
    assert await store.run(lambda tx: (tx.changes.newest(), tx.changes.ledger().compacted)) == (21, 0)
    await store.close()
    before.dispose()  # not earlier: a reader may have had a connection of it


CANCEL = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def test_without_the_standby_no_lock_is_taken_and_every_replica_is_unready(place: Place, stack: AsyncExitStack) -> None:
    """The next fail-over would lose the lock, and another would lead in the same term."""
    one, other = [await opened(stack, place.url, IMPATIENT) for _ in range(2)]
    line = SqlLeaderLockConnection(place.url, lease=TIMINGS.lease)
    stack.push_async_callback(line.close)
    await asyncio.to_thread(place.standby.stop)
    taking = asyncio.create_task(RowLock(line).take(None, Candidate("one", "one-1"), TIMINGS.lease))
    while not taking.done():
        await asyncio.to_thread(asked, place.primary, CANCEL)
    with pytest.raises(UnavailableError, match="standby has not confirmed it"):
        await taking
    with pytest.raises(UnavailableError):  # the first waits for the standby, in vain
        await one.run(put, "one")
    # the others wait for the first, whose session goes on without it
    outcomes = await asyncio.gather(*(other.run(put, f"other{number}") for number in range(20)), return_exceptions=True)
    assert {type(each) for each in outcomes} == {UnavailableError}
    for store in (one, other):
        with pytest.raises(UnavailableError):
            await store.check()
    await asyncio.to_thread(place.standby.start)
    for store in (one, other):
        await until_ready(store)


WARNINGS = """DO $$ BEGIN RAISE WARNING 'now'; END $$

CREATE TEMP TABLE late (x int)

CREATE FUNCTION pg_temp.warn() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE WARNING 'at the commit'; RETURN NULL; END $$

CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION pg_temp.warn()

INSERT INTO late VALUES (1)"""
