"""A PostgreSQL that restarts, freezes, fails over or has no room loses nothing acknowledged, and all goes on by itself."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from threading import Event
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from hub.access import revocation_poller as looking
from hub.access.peers import Peers
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.liveness import Beat
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.store import SqlStore
from hub.store.engine.engine import UnknownOutcomeError, parse_url, writing_engine
from hub.store.engine.timeouts import SessionLimits
from machinery import pki
from machinery.errors import ConflictError, ExpiredError, InvalidError, UnauthorizedError, UnavailableError
from machinery.identity import CertificateSubject, ClusterName, SerialNumber
from machinery.runtime.clock import SystemClock
from tests.checks import check_refusal_of, present
from tests.fakes import databases
from tests.fakes.databases import names, newest, put, until_ready
from tests.fakes.postgres import small_disk
from tests.trials import repeated

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer  # only where the package is installed

    Pair = tuple[PostgresServer, PostgresServer, str]

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

HELD = timedelta(seconds=2)
replicas = partial(databases.replicas, poll=timedelta(milliseconds=100), session=SessionLimits(HELD))


@dataclass
class Load:
    """Writers that never stop, and a follower on each replica."""

    stores: list[SqlStore]
    done: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    seen: list[set[str]] = field(default_factory=list)
    failures: int = 0

    async def write(self, writer: int) -> None:
        store, number = self.stores[writer % len(self.stores)], 0
        while True:
            name, number = f"w{writer}-{number}", number + 1
            try:
                await store.run(put, name)
            except UnknownOutcomeError:
                self.unknown.add(name)
            except UnavailableError:
                self.failures += 1
                await asyncio.sleep(0.02)
            else:
                self.done.add(name)

    async def follow(self, store: SqlStore, seen: set[str]) -> None:
        """As a watch does it: from a list on, and from a new list when its place is gone."""
        while True:
            try:
                after = await store.read(newest)
                seen |= {*await store.read(names)}
                async for changes in store.follow(after):
                    seen |= {change.key.name for change in changes}
            except ExpiredError:
                continue
            except UnavailableError:
                await asyncio.sleep(0.02)

    async def progress(self, more: int = 20) -> None:
        """Returns when every replica has written again, several times."""
        before = {writer: self._of(writer) for writer in range(len(self.stores))}
        while any(self._of(writer) < count + more for writer, count in before.items()):  # noqa: ASYNC110 - no Event
            await asyncio.sleep(0.01)

    def _of(self, writer: int) -> int:
        return sum(1 for name in self.done if int(name[1:].partition("-")[0]) % len(self.stores) == writer)


@asynccontextmanager
async def loaded(stores: list[SqlStore]) -> AsyncIterator[Load]:
    """Load within the block; after it nothing acknowledged is missing, and every follower has seen all that is there."""
    load = Load(stores, seen=[set() for _ in stores])
    following = [asyncio.create_task(load.follow(store, seen)) for store, seen in zip(stores, load.seen, strict=True)]
    writing = [asyncio.create_task(load.write(writer)) for writer in range(6)]
    try:
        await load.progress()
        yield load
        await load.progress()
        for task in writing:
            task.cancel()
        await asyncio.wait(writing)
        await stores[0].run(put, "last")
        found = {*await stores[0].read(names)}
        missing = load.done - found
        assert not missing, f"{len(missing)} acknowledged writes are lost"
        while not all(found <= seen for seen in load.seen):  # noqa: ASYNC110 - no Event
            await asyncio.sleep(0.02)
        for store in stores:
            await store.check()
    finally:
        for task in (*writing, *following):
            task.cancel()


async def unready(store: SqlStore) -> None:
    """Returns when the check fails."""
    while True:
        try:
            async with asyncio.timeout(1.5):  # as the hub's readiness asks
                await store.check()
        except (UnavailableError, TimeoutError):
            return
        await asyncio.sleep(0.02)


@contextmanager
def started(server: "PostgresServer") -> Iterator["PostgresServer"]:
    try:
        yield server.start()
    finally:
        server.stop("immediate")


@pytest.fixture
def server(server_template: "PostgresServer", server_folder: Path) -> Iterator["PostgresServer"]:
    with started(server_template.copied(server_folder / "a")) as made:
        yield made


@pytest.fixture
def pair(replicated_servers: tuple["PostgresServer", "PostgresServer"]) -> "Pair":
    """A server, its synchronous standby, and the URL of both, the standby first: it is reached and takes no writes."""
    primary, standby = replicated_servers
    return primary, standby, f"postgresql://postgres@/postgres?host={standby.folder},{primary.folder}"


@repeated(1, 10)
async def test_a_restart_under_load(server: "PostgresServer", trial: int) -> None:
    del trial
    async with replicas(server.url) as stores, loaded(stores) as load:
        for mode in ("fast", "immediate"):
            failures = load.failures
            await asyncio.to_thread(server.stop, mode)
            await asyncio.gather(*(unready(store) for store in stores))
            await asyncio.to_thread(server.start)
            await asyncio.gather(*(until_ready(store) for store in stores))
            await load.progress()
            assert load.failures > failures


@repeated(1, 10)
@pytest.mark.parametrize("fault", ["crash", "freeze"])
async def test_a_failover_to_the_synchronous_standby_under_load(pair: "Pair", fault: str, trial: int) -> None:
    """The kernel of a server that freezes answers for it, so TCP notices nothing, and its own time-outs stand still with it."""
    del trial
    primary, standby, url = pair
    async with replicas(url) as stores, loaded(stores):
        await asyncio.to_thread(*((primary.stop, "immediate") if fault == "crash" else (primary.freeze,)))
        await asyncio.gather(*(unready(store) for store in stores))
        await asyncio.to_thread(standby.promote)
        await asyncio.gather(*(until_ready(store) for store in stores))


CANCEL = text("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")


async def test_a_commit_that_the_standby_did_not_confirm_is_not_called_done(pair: "Pair") -> None:
    """When its wait is ended, PostgreSQL calls it done, with a warning; the next failover would lose it."""
    primary, standby, url = pair
    administrator = writing_engine(parse_url(primary.url))
    async with replicas(url, 1) as (store,):
        await store.run(put, "both")
        await asyncio.to_thread(standby.stop)
        one = asyncio.create_task(store.run(put, "one"))
        while not one.done():
            with administrator.connect() as connection:
                connection.execute(CANCEL)
            await asyncio.sleep(0.01)
        await check_refusal_of(UnknownOutcomeError, one, match="standby did not confirm it")
        with pytest.raises(UnknownOutcomeError, match="did not confirm whether"):  # and if nobody ends it, we do
            await store.run(put, "none")
        await unready(store)
        await asyncio.to_thread(standby.start)
        await until_ready(store)
        await store.run(put, "again")
        assert {"both", "again"} <= {*await store.read(names)}
    administrator.dispose()


async def test_a_revocation_that_the_standby_confirms_late_ends_what_every_replica_remembers(
    pair: "Pair", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is that of its BEGIN: when it becomes visible, the looks of the last seconds have long passed it."""
    primary, standby, url = pair
    monkeypatch.setattr(looking, "OVERLAP", timedelta())
    async with replicas(url) as stores, AsyncExitStack() as stack:
        certificate, record = certificate_of(SystemClock().now())
        await stores[0].run(lambda tx: tx.certificates.add(record))
        everybody = [Peers(store, SystemClock()) for store in stores]
        for peers in everybody:
            stack.callback(asyncio.create_task(peers.run()).cancel)
            await peers.identify(certificate)
        await asyncio.to_thread(standby.stop)
        with pytest.raises(UnknownOutcomeError):
            await stores[0].run(lambda tx: tx.certificates.revoke([record.serial], tx.now, "test"))
        for peers in everybody:
            assert (await peers.identify(certificate)).revoked_at is None, "nobody can know yet"
        visible = asyncio.create_task(until_visible(primary, record.serial))
        await asyncio.to_thread(standby.start)
        await visible
        for peers in everybody:
            while await is_known(peers, certificate):  # noqa: ASYNC110 - no Event
                await asyncio.sleep(0.01)


async def is_known(peers: Peers, certificate: bytes) -> bool:
    try:
        await peers.identify(certificate)
    except UnauthorizedError:
        return False
    return True


async def until_visible(server: "PostgresServer", serial: SerialNumber) -> None:
    """Returns when others can read that it is revoked."""
    engine = writing_engine(parse_url(server.url))
    asked = text("SELECT revoked_at FROM certificates WHERE serial = :serial")
    with engine.connect() as connection:
        while (await asyncio.to_thread(connection.execute, asked, {"serial": f"{serial:x}"})).scalar_one() is None:
            connection.rollback()
            await asyncio.sleep(0.005)
    engine.dispose()


def certificate_of(now: datetime) -> tuple[bytes, CertificateRecord]:
    """An operator's certificate, good for a day, and what is on record of it."""
    began, ends = now - timedelta(minutes=5), now + timedelta(days=1)
    authority = pki.create_authority(
        CertificateSubject("ca"), pki.generate_key(), pki.random_serial(), began, ends + timedelta(days=1)
    )
    public = pki.public_key_of(pki.generate_key())
    plan = pki.Plan(CertificateSubject("ann"), public, pki.random_serial(), began, ends)
    record = CertificateRecord(plan.serial, Purpose.OPERATOR, "ann", (), began, ends, pki.key_hash(public), now)
    return authority.sign(plan), record


async def test_a_full_disk_under_the_server(server_template: "PostgresServer", server_folder: Path) -> None:
    with small_disk(server_folder / "disk", "96m") as disk, started(server_template.copied(disk.place / "a")) as server:
        async with replicas(server.url, session=SessionLimits()) as (one, two):
            await one.run(put, "before")
            disk.fill()
            acknowledged = {"before"}
            with pytest.raises(UnavailableError, match=r"disk is full|does not answer|did not say"):
                for number in range(1000):
                    await one.run(put, f"large{number}", 200_000)
                    acknowledged.add(f"large{number}")
            await unready(one)
            assert "before" in await two.read(names)
            disk.free()
            await until_ready(one)
            while True:
                try:
                    await one.run(put, "after", 200_000)
                    break
                except (UnavailableError, ConflictError):
                    await asyncio.sleep(0.1)
            assert acknowledged | {"after"} <= {*await two.read(names)}
            revision = await one.read(newest)
            assert await two.wait_for_change(revision - 1, timedelta(seconds=30)) == revision


async def test_full_disk_is_reported_while_small_writes_succeed(server_template: "PostgresServer", server_folder: Path) -> None:
    """Beats find a place in the pages that there are, whatever is new finds none."""
    with small_disk(server_folder / "tables", "48m") as disk:
        laid = server_template.copied(server_folder / "a").lay("base", disk.place)
        with started(laid) as server:
            async with replicas(server.url, 1) as (one,):
                await one.run(beat)
                disk.fill()
                with pytest.raises(UnavailableError, match="the database's disk is full: make room"):
                    for number in range(1000):
                        await one.run(put, f"large{number}", 200_000)
                for _ in range(3):
                    await one.run(beat)
                    await check_refusal_of(UnavailableError, one.check(), match="the database's disk is full")
                disk.free()
                await one.check()
                await one.run(put, "after", 200_000)


def beat(tx: Transaction) -> None:
    tx.heartbeats.store([Beat(ClusterName("edge"), timedelta(), None, 0)])


async def test_a_text_too_long_for_an_index_is_refused_alone(migrated_postgres_url: str) -> None:
    versions, begun, runs = ("v1", token_urlsafe(4500), "v2"), Event(), list[str]()

    def report(tx: Transaction, name: str, version: str) -> None:
        runs.append(name)
        document = {"metadata": {"name": name, "uid": name}, "status": {"version": {"kubernetes": version}}}
        tx.objects.put(MANAGED_CLUSTERS, document, None, "tester")

    async with replicas(migrated_postgres_url, 1) as (store,):
        first = asyncio.create_task(store.run(lambda _tx: begun.wait()))
        tasks = [asyncio.create_task(store.run(report, f"c{number}", each)) for number, each in enumerate(versions)]
        await asyncio.sleep(0)  # all wait for the writer, and share its next transaction
        begun.set()
        await check_refusal_of(InvalidError, tasks[1], match="too long")
        await asyncio.gather(first, tasks[0], tasks[2])
        assert (runs, await store.read(names)) == (["c0", "c1", "c2"], ["c0", "c2"])
        assert present(store._writer).fault is None
