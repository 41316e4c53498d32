"""Several replicas on one PostgreSQL: changes in order, commits in doubt, and a synchronous standby behind one address."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set as AbstractSet
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import OperationalError

from hub.access.peers import Peers
from hub.api.bootstrapcredentials import CredentialRecord
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.liveness import Beat
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.election.locks import RowLock
from hub.ports import Transaction
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.bootstrapcredentials.service import CredentialTerms
from hub.registry.certificatesigningrequests import credential_uses
from hub.registry.hubreplicas.service import Opened, open_session
from hub.store import SqlStore
from hub.store.engine.engine import UnknownOutcomeError, parse_url, reading_engine, writing_engine
from hub.store.engine.timeouts import DEFAULT, SessionLimits
from hub.store.migrate import migrate_database
from hub.store.writer.leader_lock_connection import SqlLeaderLockConnection
from machinery.election import Candidate, Elector, Leadership, Timings
from machinery.election.leader_term import Term
from machinery.errors import ConflictError, ExpiredError, ForbiddenError, UnavailableError
from machinery.identity import AgentId, ClusterName, CredentialId, SerialNumber
from machinery.meta.objects import Key, Query
from machinery.runtime.clock import SystemClock
from tests.checks import check_refusal_of
from tests.fakes.databases import followed, names, newest, put, replicas, until_ready
from tests.fakes.postgres import Way, message_types, postgres_path
from tests.fakes.stage import until

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer  # only where the package is installed

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

NEVER = timedelta(hours=1)  # a poll that does not come in time: what is seen is seen through the doorbell
ROOT = Path(__file__).parents[2]
OFTEN = timedelta(milliseconds=50)
END_LISTENERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND (query LIKE 'LISTEN%' OR query = 'SELECT 1')"
)


@pytest.fixture
def clean(migrated_postgres_url: str) -> str:
    return migrated_postgres_url


@pytest.fixture
def other(clean: str) -> Iterator[Engine]:
    engine = writing_engine(parse_url(clean))
    yield engine
    engine.dispose()


async def await_doorbell(writer: SqlStore, reader: SqlStore) -> None:
    """Returns once the reader hears the writer: the bell is hung up beside the opening of a store."""
    for attempt in range(1000):
        await writer.run(put, f"bell{attempt}")
        revision = await writer.read(newest)
        if await reader.wait_for_change(revision - 1, timedelta(milliseconds=200)) >= revision:
            return
    pytest.fail("the doorbell is not heard")


async def test_commits_of_one_replica_notify_another_also_after_its_listener_was_ended(clean: str, other: Engine) -> None:
    async with replicas(clean, 2, poll=NEVER) as (one, two):
        await await_doorbell(two, one)
        for _ in range(2):
            await await_doorbell(one, two)
            for number in range(20):
                await one.run(put, f"c{number}")
                revision = await one.read(newest)
                assert await two.wait_for_change(revision - 1, NEVER) == revision
            with other.begin() as connection:
                connection.execute(END_LISTENERS)


async def test_revocations_and_new_sessions_notify_the_replicas_without_a_poll(clean: str) -> None:
    def opens(tx: Transaction) -> None:
        for name in ("c1", "c2"):
            open_session(tx, Opened(ClusterName(name), AgentId("agent"), f"session-of-{name}", "1", "one"))

    async with replicas(clean, 2, poll=NEVER) as (one, two), AsyncExitStack() as stack:
        await await_doorbell(two, one)
        await await_doorbell(one, two)
        found: list[asyncio.Queue[AbstractSet[SerialNumber] | None]] = [asyncio.Queue(), asyncio.Queue()]
        for store, queue in zip((one, two), found, strict=True):
            peers = Peers(store, SystemClock(), poll=NEVER)
            peers.listen(queue.put_nowait)
            stack.callback(asyncio.create_task(peers.run()).cancel)
        now = SystemClock().now()
        record = CertificateRecord(SerialNumber(7), Purpose.AGENT, "edge", (), now, now + timedelta(days=1), "k", now)
        await one.run(lambda tx: tx.certificates.add(record))
        await one.run(lambda tx: tx.certificates.revoke([record.serial], tx.now, "test"))
        assert [await queue.get() for queue in found] == [{record.serial}] * 2
        token, _ = await one.run(credentials.create_token, CredentialTerms(None, None, timedelta(hours=1)), "ann")
        word, own = asyncio.Event(), asyncio.Event()
        with two.subscribe_to_revocations(word.set):
            await one.run(credentials.revoke, token.id)
            await word.wait()
        word.clear()
        with two.subscribe_to_sessions(word.set) as is_notified, one.subscribe_to_sessions(own.set):
            await one.run(opens)
            await word.wait()
            await await_doorbell(two, one)  # notifications come in order
            await until(is_notified)  # a replica relies on notifications once it has heard one of its own, as just now
            assert not own.is_set()


async def test_without_notifications_a_replica_polls_and_says_that_it_is_not_notified(clean: str) -> None:
    async with replicas(clean, 2, poll=OFTEN, doorbell=False) as (one, two):
        for number in range(3):
            await one.run(put, f"c{number}")
        assert await followed(two, 0, 3) == [1, 2, 3]
        with one.subscribe_to_sessions(lambda: None) as is_notified:
            assert not is_notified()


async def test_commit_in_doubt_is_reported_as_unknown_and_never_done_twice(clean: str) -> None:
    """The connection is cut before or after a commit, of one use case or of several in one transaction."""
    runs: list[str] = []

    def count(tx: Transaction, name: str) -> None:
        runs.append(name)
        put(tx, name)

    def refuse(tx: Transaction) -> None:
        put(tx, "refused")
        raise ConflictError("no")

    async with postgres_path(clean) as (way, there), replicas(there, 1, poll=OFTEN) as (store,):
        way.cut_next = "before"
        await check_refusal_of(UnknownOutcomeError, store.run(put, "lost"), match="did not confirm whether")
        await store.run(put, "a")
        assert (way.cuts, await store.read(names)) == (1, ["a"])
        way.cut_next = "after"
        outcomes = await asyncio.gather(*(store.run(count, f"c{n}") for n in range(8)), return_exceptions=True)
        assert way.cuts == 2
        assert {type(outcome) for outcome in outcomes} <= {type(None), UnknownOutcomeError}
        assert any(outcomes)
        assert sorted(runs) == [f"c{n}" for n in range(8)]
        assert (await store.read(names), await store.wait_for_change(8, NEVER)) == (["a", *sorted(runs)], 9)
        first = asyncio.create_task(store.run(put, "first"))
        await asyncio.sleep(0)
        way.cut_next = "after"
        outcomes = await asyncio.gather(first, *(store.run(refuse) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(outcome, ConflictError | UnknownOutcomeError) for outcome in outcomes[1:])
        assert await store.read(names) == ["a", *sorted(runs), "first"]


async def test_every_statement_of_a_batch_is_sent_with_its_sync(clean: str) -> None:
    """Before the Sync no time-out of PostgreSQL ends a session: a hub that stops there would keep its locks."""
    count = 250

    def change(tx: Transaction, revision: str) -> None:
        for number in range(count):
            key = Key("", f"c{number:03}")
            metadata = {"name": key.name, "uid": key.name, "labels": {"revision": revision}}
            tx.objects.put(MANAGED_CLUSTERS, {"metadata": metadata}, tx.objects.get(MANAGED_CLUSTERS, key), "tester")

    def delete(tx: Transaction) -> None:
        for item in tx.objects.find(MANAGED_CLUSTERS, Query()).items:
            tx.objects.delete(MANAGED_CLUSTERS, item, "tester")

    # on a busy machine this process may stand still in a transaction for longer than the usual limit of five seconds
    limits = SessionLimits(timedelta(minutes=1))
    async with postgres_path(clean) as (way, there), replicas(there, 1, poll=OFTEN, session=limits) as (store,):
        for revision in ("1", "2"):
            await store.run(change, revision)
            changed = await store.read(lambda tx: tx.objects.find(MANAGED_CLUSTERS, Query()).items)
            assert ({doc.labels(item.document)["revision"] for item in changed}, len(changed)) == ({revision}, count)
        await store.run(delete)
        assert (await store.read(names), await store.read(newest)) == ([], 3 * count)
        sessions = [message_types(sent) for sent in way.sent]
    assert max(types.count("E") for types in sessions) > count
    assert [types for types in sessions if re.search("E[^S]", types)] == []


async def test_connections_that_break_at_any_moment_lose_nothing_acknowledged_and_do_nothing_twice(clean: str) -> None:
    done: list[str] = []
    unknown: list[str] = []

    async def write(store: SqlStore, number: int) -> None:
        name = f"c{number:03}"
        while True:
            try:
                await store.run(put, name)
            except UnknownOutcomeError:
                unknown.append(name)
                return
            except UnavailableError:
                await asyncio.sleep(0)
                continue
            done.append(name)
            return

    async with postgres_path(clean) as (way, there), replicas(there, 2, poll=OFTEN) as stores:
        cutting = asyncio.create_task(_cut_again_and_again(way.cut, lambda: len(done) + len(unknown)))
        for start in range(0, 200, 20):
            await asyncio.gather(*(write(stores[n % 2], n) for n in range(start, start + 20)))
        cutting.cancel()
        found, revision = await stores[0].read(names), await stores[0].read(newest)
        assert set(done) <= set(found) <= set(done) | set(unknown)
        assert revision == len(found)
        for store in stores:
            assert await store.wait_for_change(revision - 1, NEVER) == revision


async def _cut_again_and_again(cut: Callable[[], None], progress: Callable[[], int]) -> None:
    """Never twice without anything done in between: on a busy machine a connection takes longer to make than to cut."""
    draw = Random(7)
    while True:
        before = progress()
        await asyncio.sleep(draw.uniform(0.01, 0.1))
        cut()
        while progress() == before:  # noqa: ASYNC110 - nothing sets an Event
            await asyncio.sleep(0.01)


async def test_a_database_that_lost_what_it_had_shown_makes_everybody_begin_anew(clean: str, other: Engine) -> None:
    """As after a fail-over to a standby that was not synchronous: revisions 4 and 5 are gone, and given out again."""
    async with replicas(clean, 2, poll=OFTEN) as (one, two):
        for number in range(5):
            await one.run(put, f"c{number}")
        await two.wait_for_change(4, NEVER)
        with other.begin() as connection:
            connection.execute(text("DELETE FROM changes WHERE revision > 3"))
            connection.execute(text("DELETE FROM objects WHERE revision > 3"))
            connection.execute(text("UPDATE revision SET value = 3"))
        await check_refusal_of(ExpiredError, followed(two, 5, 10**9))
        await check_refusal_of(ExpiredError, followed(one, 3, 10**9))

        async def written_and_seen() -> bool:
            """Each replica sees the loss for itself: the second makes all begin anew once more."""
            revision = await one.read(newest)
            await one.run(put, "anew")
            try:
                return await followed(two, revision, revision + 1) == [revision + 1]
            except ExpiredError:
                return False

        assert await written_and_seen() or await written_and_seen()
        assert await two.read(names) == ["anew", "c0", "c1", "c2"]


def flush(tx: Transaction, clusters: list[str]) -> None:
    tx.heartbeats.store([Beat(ClusterName(name), timedelta(), available=True) for name in clusters])


def judge(tx: Transaction, name: str) -> None:
    """Locks a beat, then writes the object, as the availability controller and a reviving heartbeat do."""
    tx.heartbeats.of(ClusterName(name))
    put(tx, name)


async def test_replicas_never_wait_for_each_other_in_rings(clean: str, other: Engine) -> None:
    """Many use cases that lock beats, each in an order of its own, before and after they take revisions."""
    clusters = [f"c{number:02}" for number in range(30)]
    draw = Random(3)
    async with replicas(clean, 3, poll=OFTEN) as stores:
        await stores[0].run(flush, clusters)
        for _ in range(5):
            flushes = [store.run(flush, draw.sample(clusters, 20)) for store in stores]
            judgements = [store.run(judge, draw.choice(clusters)) for store in stores for _ in range(8)]
            outcomes = await asyncio.gather(*flushes, *judgements, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {type(None), ConflictError}
    with other.connect() as connection:
        assert connection.execute(DEADLOCKS).scalar_one() == 0


DEADLOCKS = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")

STOPPED = """
import asyncio, sys, time
from datetime import timedelta
from hub.store import SqlStore
from hub.store.engine.timeouts import SessionLimits

def stay(tx):
    tx.changes.lock()
    tx.heartbeats.set_session("edge", "s")
    print("inside", flush=True)
    time.sleep(600)

async def main():
    store = SqlStore(sys.argv[1], session=SessionLimits(timedelta(seconds=float(sys.argv[2]))))
    await store.open()
    await store.run(stay)

asyncio.run(main())
"""


async def test_a_replica_that_is_stopped_inside_a_transaction_holds_nobody_for_longer_than_it_may(clean: str) -> None:
    held = 1.0
    async with replicas(clean, 1, poll=OFTEN) as (store,):
        stopped = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STOPPED, clean, str(held), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert stopped.stdout is not None
            assert await stopped.stdout.readline() == b"inside\n"
            stopped.send_signal(signal.SIGSTOP)
            await store.run(put, "after")
            assert await store.read(names) == ["after"]
        finally:
            stopped.kill()
            await stopped.wait()


END_OTHERS = text("""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'muster-hub'
""")


@pytest.fixture
async def both(clean: str) -> AsyncIterator[tuple[SqlStore, SqlStore]]:
    async with replicas(clean, 2, poll=OFTEN) as (one, two):
        yield one, two


def increment(tx: Transaction) -> int:
    old = tx.objects.get(MANAGED_CLUSTERS, Key("", "a"))
    count = 1 + (old.document["spec"]["count"] if old else 0)
    tx.objects.put(MANAGED_CLUSTERS, {"metadata": {"name": "a", "uid": "u"}, "spec": {"count": count}}, old, "tester")
    return count


async def test_replicas_lose_no_update_overspend_no_use_and_see_changes_in_order(both: tuple[SqlStore, SqlStore]) -> None:
    writing = asyncio.gather(*(store.run(increment) for _ in range(30) for store in both))
    counts, seen = await asyncio.gather(writing, followed(both[0], 0, 60))
    assert sorted(counts) == seen == list(range(1, 61))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    record = CredentialRecord(CredentialId("c"), None, 3, now, datetime.max.replace(tzinfo=UTC), "ann")
    await both[0].run(lambda tx: tx.credentials.add(record))
    admissions = [store.run(credential_uses.admit, record.id, ClusterName(f"c{n}")) for n in range(20) for store in both]
    assert {type(outcome) for outcome in await asyncio.gather(*admissions, return_exceptions=True)} == {tuple, ForbiddenError}
    assert await both[0].read(lambda tx: len(tx.credentials.admitted(record.id))) == 3


async def test_judged_beat_cannot_be_replaced_before_the_verdict(both: tuple[SqlStore, SqlStore], other: Engine) -> None:
    edge = ClusterName("edge")
    await both[0].run(lambda tx: tx.heartbeats.store([Beat(edge, timedelta(), available=True)]))

    def judge(tx: Transaction) -> None:
        tx.heartbeats.of(edge)
        with other.begin() as connection, pytest.raises(OperationalError, match="could not obtain lock"):
            connection.execute(text("SELECT * FROM heartbeats FOR UPDATE NOWAIT"))

    await both[0].run(judge)


async def test_reads_are_snapshots_a_read_only_server_says_so_and_an_ended_session_is_replaced(
    both: tuple[SqlStore, SqlStore], other: Engine
) -> None:
    await both[0].run(increment)

    def look_twice(tx: Transaction) -> tuple[int, int]:
        first = tx.objects.find(MANAGED_CLUSTERS, Query()).items[0].revision
        with other.begin() as connection:
            connection.execute(text("UPDATE objects SET revision = 99"))
        return first, tx.objects.find(MANAGED_CLUSTERS, Query()).items[0].revision

    def protect(tx: Transaction) -> None:
        tx.objects._connection.execute(text("SET TRANSACTION READ ONLY"))  # type: ignore[attr-defined]
        increment(tx)

    assert await both[0].read(look_twice) == (1, 1)
    await check_refusal_of(UnavailableError, both[0].run(protect), match="does not take writes")
    with other.begin() as connection:
        connection.execute(text("UPDATE objects SET revision = 1"))
        connection.execute(END_OTHERS)
    assert await both[0].run(increment) == 2
    assert len((await both[1].read(lambda tx: tx.objects.find(MANAGED_CLUSTERS, Query()))).items) == 1


TENTH = timedelta(milliseconds=100)
TIMINGS = Timings(lease=timedelta(seconds=1.5), renew_deadline=timedelta(seconds=1), retry=TENTH, poll=TENTH)
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
    while not asked(place.standby, f"SELECT pg_last_wal_replay_lsn() >= '{written}'"):  # noqa: ASYNC110 - nothing sets an Event
        await asyncio.sleep(0.01)
    asked(place.standby, "SELECT pg_wal_replay_pause()::text")
    while asked(place.standby, "SELECT pg_get_wal_replay_pause_state()") != "paused":  # noqa: ASYNC110 - nothing sets an Event
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
    while any(flag.term is not None for flag in flags) is not by_somebody:  # noqa: ASYNC110 - nothing sets an Event
        await asyncio.sleep(0.01)


async def tried(elector: Elector, times: int) -> None:
    """Returns when it has looked so many times more, in vain or not."""
    before = elector.tally.polls
    while elector.tally.polls < before + times:  # noqa: ASYNC110 - nothing sets an Event
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
            await check_refusal_of(UnavailableError, store.check(), match="is a standby, and the hub uses only a primary")
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
    await check_refusal_of(UnavailableError, taking, match="standby did not confirm it")
    with pytest.raises(UnavailableError):  # the first waits for the standby, in vain
        await one.run(put, "one")
    # the others wait for the first, whose session goes on without it
    outcomes = await asyncio.gather(*(other.run(put, f"other{number}") for number in range(20)), return_exceptions=True)
    assert {type(each) for each in outcomes} == {UnavailableError}
    for store in (one, other):
        await check_refusal_of(UnavailableError, store.check())
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
