"""Replicas with agents and operators whose PostgreSQL restarts, crashes, is read-only, loses its standby, fails over, is full.

Nothing acknowledged is lost, readiness tells the truth, nobody reads Unknown for it, one replica writes for all, and everything
goes on by itself; afterwards a silent agent is noticed as ever.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from sqlalchemy.exc import DBAPIError

from hub.auditing import run as audited
from hub.store.failures import AWAY, DISK_FULL
from machinery.clock import SystemClock
from machinery.errors import UnavailableError
from machinery.identity import ClusterName
from machinery.kube.client import KubeClient
from spoke.hubclient.client import GrpcHubClient
from tests.e2e.crowd import AGENT, Crowd, Entrance, crowd_of, entrance
from tests.e2e.processes import CLUSTERS, Bench, status_of, until
from tests.e2e.replicas import Election, Replica, election_of, replicas_of
from tests.fakes.postgres import SmallDisk, small_disk
from tests.fakes.postgres_path import Way, postgres_path
from tests.trials import soaked, trials

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer  # only where the package is installed

AGENTS = trials(test=8, soak=1000)
REPLICAS = trials(test=2, soak=3)
LEASE = 10
"""Of the clusters, in seconds: a cluster reads Unknown after five of them, which is longer than any of the faults."""
ROUNDS = trials(test=1, soak=10)
FULL = 1.2
"""Seconds that a disk stays full after everybody has noticed."""
LINES, RENEWAL = 6, "the leader's lock was not renewed"
"""At most so often each thing is told in a log, of two faults; a leader tells of each renewal, for as long as it leads."""
FLAGS = ("--auto-approve=*", f"--default-lease-duration={LEASE}s", "--beat-interval=1s", "--flush-window=200ms")

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240 + AGENTS * ROUNDS)]


@dataclass(frozen=True, slots=True)
class Databases:
    """A server, its synchronous standby, and the one address that leads to either."""

    primary: "PostgresServer"
    standby: "PostgresServer"
    way: Way
    url: str

    async def restart(self, mode: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        await asyncio.to_thread(self.primary.stop, mode)
        await meanwhile()
        await asyncio.to_thread(self.primary.start)

    async def lose_standby(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        await asyncio.to_thread(self.standby.stop)
        await meanwhile()
        await asyncio.to_thread(self.standby.start)

    async def take_no_writes(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """As providers do it to a server whose disk is nearly full."""
        for setting, then in (("on", meanwhile), ("off", None)):
            self.primary.configure(f"default_transaction_read_only = {setting}")
            await asyncio.to_thread(self.primary.reload)
            if then is not None:
                await then()

    async def fail_over(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """The address leads to the standby before that is promoted."""
        await asyncio.to_thread(self.primary.stop, "immediate")
        self.way.lead_to(self.standby.folder)
        await meanwhile()
        await asyncio.to_thread(self.standby.promote)


@pytest.fixture
async def databases(replicated_servers: tuple["PostgresServer", "PostgresServer"]) -> AsyncIterator[Databases]:
    primary, standby = replicated_servers
    primary.configure("max_connections = 100")
    async with postgres_path(primary.url) as (way, url):
        yield Databases(primary, standby, way, url)


async def all_are(replicas: list[Replica], *, ready: bool) -> None:
    async def so() -> bool:
        return {await replica.probed() for replica in replicas} == {200 if ready else 500}

    await until(so, what="every replica is ready" if ready else "no replica is ready")


@asynccontextmanager
async def working(election: Election, crowd: Crowd) -> AsyncIterator[list[str]]:
    """Agents beat and an operator writes within the block; after it all that was acknowledged is there, and answered.

    Gives the names of what was acknowledged, as they come.
    """
    async with crowd.running(), election.worked(election.replicas.all) as accepted:
        await crowd.all_heard()
        yield accepted
        sofar = len(accepted)
        await until(lambda: len(accepted) > sofar, what="the operator's writes are taken")
        assert await election.ask("SELECT cluster FROM transitions WHERE status = 'Unknown'") == []
        await crowd.all_heard(asyncio.get_running_loop().time())
    await election.answered(*accepted, at=await election.leader())
    await election.check()


async def silent_is_noticed(election: Election, crowd: Crowd) -> None:
    """Of agents that come back one does not, whose lease is short."""
    name = f"{crowd.prefix}-{AGENTS - 1}"
    async with await KubeClient.from_file(election.replicas.bench.admin) as client:
        await client.patch(f"{CLUSTERS}/{name}", {"spec": {"leaseDurationSeconds": 1}})

    def unknown(document: object) -> bool:
        assert isinstance(document, dict)
        return status_of(document, "ManagedClusterConditionAvailable") == "Unknown"

    async with crowd.running(range(AGENTS - 1)):
        await crowd.all_heard_of(range(AGENTS - 1))
        await election.replicas.bench.cluster_when(name, unknown, what="reads Unknown")


@soaked(ROUNDS)
async def test_replicas_bear_whatever_happens_to_their_database(bench: Bench, databases: Databases) -> None:
    async with replicas_of(bench, databases.url) as replicas, election_of(replicas) as election:
        await election.start(REPLICAS, *FLAGS)
        crowd = await crowd_of(bench.admin, AGENTS)

        async def meanwhile() -> None:
            await all_are(replicas.all, ready=False)

        faults = [
            partial(databases.restart, "fast", meanwhile),
            partial(databases.restart, "immediate", meanwhile),
            partial(databases.lose_standby, meanwhile),
            partial(databases.take_no_writes, meanwhile),
        ] * ROUNDS
        faults.append(partial(databases.fail_over, meanwhile))
        async with working(election, crowd):
            for fault in faults:
                await fault()
                election.engine.dispose()  # its connections are to what was
                await all_are(replicas.all, ready=True)
                await crowd.all_heard(asyncio.get_running_loop().time())
                await election.leader()
        await silent_is_noticed(election, crowd)


@dataclass(frozen=True, slots=True)
class Cramped:
    """A server whose tables lie on a small disk, and whose log of writes lies on another."""

    server: "PostgresServer"
    tables: SmallDisk
    log: SmallDisk

    async def fill_tables(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """The server goes on and refuses what needs room, and only that."""
        self.tables.fill()
        await meanwhile()
        self.tables.free()

    async def fill_log(self, election: Election, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """The server panics, and so it does whenever it begins again: it is started with room, as by its supervisor."""
        self.log.fill()

        async def ended() -> bool:
            with suppress(DBAPIError):
                await election.ask("SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1000000))")
            return not await asyncio.to_thread(self.server.is_there)

        await until(ended, what="the server has panicked")
        await meanwhile()
        self.log.free()
        await asyncio.to_thread(self.server.start)


@pytest.fixture
def cramped(server_template: "PostgresServer", server_folder: Path) -> Iterator[Cramped]:
    server = server_template.copied(server_folder / "a")
    server.configure("max_connections = 100")
    with small_disk(server_folder / "tables", "64m") as tables, small_disk(server_folder / "log", "48m") as log:
        server.lay("base", tables.place).lay("pg_wal", log.place).start()
        try:
            yield Cramped(server, tables, log)
        finally:
            server.stop("immediate")


@dataclass(frozen=True, slots=True)
class Callers:
    """Who asks each replica while there is no room, and what it has to say."""

    election: Election
    let_in: Entrance

    async def none_writes(self, *, because: str) -> None:
        """Each replica refuses an operator's write for that reason, is unready from then on, and lives."""
        replicas = self.election.replicas.all
        for replica in replicas:
            await self._refused(replica, because)
        await all_are(replicas, ready=False)
        until_then = asyncio.get_running_loop().time() + FULL
        while asyncio.get_running_loop().time() < until_then:
            for replica in replicas:
                assert await replica.probed() == 500, "it is ready, and takes no writes"
                assert replica.process.running
        for replica in replicas:
            await self._refused(replica, because)

    async def _refused(self, replica: Replica, because: str) -> None:
        async def answer() -> str:  # what finds room in the place of something old is taken
            try:
                await self.election.accept(f"new-{uuid4().hex}", replica)
            except UnavailableError as error:
                return error.message
            return ""

        assert because in await until(answer, what="a write is refused")

    async def are_shown_what_is_there(self) -> None:
        for replica in self.election.replicas.all:
            async with await replica.client() as client:
                assert (await client.get(CLUSTERS))["items"]

    async def newcomer_is_told(self, because: str) -> None:
        """An agent that would register is, at the other door."""
        client = GrpcHubClient(self.let_in.address, self.let_in.identity, SystemClock())
        name = ClusterName("newcomer")
        try:
            with pytest.raises(UnavailableError, match=because):
                await client.ensure_cluster(name, AGENT, f"uid-of-{name}", endpoints=(), annotations={})
        finally:
            await client.close()


def told_of_trouble(replica: Replica) -> Counter[tuple[str, ...]]:
    """How often each thing stands in a replica's log as a warning or worse, whatever was said to be the reason."""
    lines = [json.loads(line) for line in replica.process.output.splitlines()]
    worse = [line for line in lines if line["level"] in {"warning", "error", "critical"} and line["event"] != RENEWAL]
    return Counter(tuple(str(line.get(name, "")) for name in ("event", "controller", "key", "sink")) for line in worse)


async def is_remembered(election: Election, names: Collection[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these creations has its audit record, once, and every chain is whole."""
    made = "verb = 'create' AND resource = 'managedclusters' AND convert_from(document, 'UTF8') ~ '\"code\".201'"
    asked = f"SELECT name FROM audit WHERE {made}"  # noqa: S608 - our own words

    async def all_are_kept() -> bool:
        found = Counter(row.name for row in await election.ask(asked))
        return all(found[name] == 1 for name in names)

    await until(all_are_kept, what="what was acknowledged is remembered once")
    monkeypatch.setenv("HUB_DATABASE_URL", election.replicas.database)
    assert await asyncio.to_thread(audited, None, election.replicas.bench.folder, None, ()) == 0


async def test_replicas_bear_disks_of_their_database_that_fill_up(
    bench: Bench, cramped: Cramped, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas_of(bench, cramped.server.url) as replicas, election_of(replicas) as election:
        await election.start(REPLICAS, *FLAGS)
        crowd = await crowd_of(bench.admin, AGENTS)
        callers = Callers(election, await entrance(bench.admin, uses=1))

        async def no_room() -> None:
            await callers.none_writes(because=DISK_FULL)
            await callers.are_shown_what_is_there()
            await callers.newcomer_is_told(DISK_FULL)

        async def no_server() -> None:
            await callers.none_writes(because=AWAY)

        async with working(election, crowd) as accepted:
            for fault in (partial(cramped.fill_tables, no_room), partial(cramped.fill_log, election, no_server)):
                await fault()
                election.engine.dispose()  # its connections are to what was
                await all_are(replicas.all, ready=True)
                await crowd.all_heard(asyncio.get_running_loop().time())
                await election.leader()
        await is_remembered(election, accepted, monkeypatch)
        for replica in replicas.all:
            assert "Traceback" not in replica.process.output
            assert max(told_of_trouble(replica).values()) <= LINES, told_of_trouble(replica).most_common(5)
