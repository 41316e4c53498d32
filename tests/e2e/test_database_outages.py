"""Replicas with agents and operators whose PostgreSQL restarts, crashes, takes no writes, loses its standby and fails over.

Nothing acknowledged is lost, readiness tells the truth, nobody reads Unknown for it, one replica writes for all, and everything
goes on by itself; afterwards a silent agent is noticed as ever.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.e2e.crowd import Crowd, crowd_of
from tests.e2e.elections import Election, election_of
from tests.e2e.processes import Bench, status_of, until
from tests.e2e.replicas import Replica, replicas_of
from tests.fakes.postgres_path import Way, postgres_path
from tests.trials import soaked, trials

if TYPE_CHECKING:
    from tests.fakes.postgres_cluster import PostgresServer  # only where the package is installed

AGENTS = trials(test=8, soak=1000)
REPLICAS = trials(test=2, soak=3)
LEASE = trials(test=2, soak=10)
"""Of the clusters, in seconds."""
ROUNDS = trials(test=1, soak=10)
NOTICED = 5 * LEASE + 1
"""Seconds until a silent cluster reads Unknown."""
BACK_WITHIN = 30.0
SPARE = 5
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


async def is_ready(replica: Replica) -> bool:
    """As a kubelet asks, which is nobody."""
    url = f"https://127.0.0.1:{replica.https_port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as answer:
        assert answer.status in (200, 500)
        return answer.status == 200


async def all_are(replicas: list[Replica], *, ready: bool) -> None:
    async def so() -> bool:
        return {await is_ready(replica) for replica in replicas} == {ready}

    await until(so, what="every replica is ready" if ready else "no replica is ready", within=60)


@asynccontextmanager
async def working(election: Election, crowd: Crowd) -> AsyncIterator[None]:
    """Agents beat and an operator writes within the block; after it all that was acknowledged is there, and answered."""
    async with crowd.running(), election.worked(election.replicas.all) as accepted:
        await crowd.all_heard(within=60 + AGENTS / 4)
        yield
        sofar = len(accepted)

        async def some_more() -> bool:
            return len(accepted) > sofar

        await until(some_more, what="the operator's writes are taken", within=30)
        assert await election.ask("SELECT cluster FROM transitions WHERE status = 'Unknown'") == []
    async with crowd.running(range(AGENTS - 1)):
        await crowd.all_heard_of(range(AGENTS - 1), within=BACK_WITHIN + AGENTS / 4)
        await election.answered(*accepted, at=await election.leader())
        await election.check()
        await silent_is_noticed(election, f"{crowd.prefix}-{AGENTS - 1}")


async def silent_is_noticed(election: Election, name: str) -> None:
    def unknown(document: object) -> bool:
        assert isinstance(document, dict)
        return status_of(document, "ManagedClusterConditionAvailable") == "Unknown"

    await election.replicas.bench.cluster_when(name, unknown, what="reads Unknown", within=SPARE * NOTICED)


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
                await crowd.all_heard(asyncio.get_running_loop().time(), within=BACK_WITHIN + AGENTS / 4)
                await election.leader()
