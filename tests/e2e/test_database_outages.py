"""Replicas with agents and operators whose PostgreSQL restarts, crashes, is read-only, loses its standby, fails over."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest

from machinery.client.rest import KubeClient
from tests.e2e.crowd import Crowd, crowd_of
from tests.e2e.processes import AVAILABLE, CLUSTERS, Bench, status_of, until
from tests.e2e.replicas import Election, Replica, replicas_of
from tests.fakes.postgres_path import Way, postgres_path
from tests.trials import SOAKING, soaked, trials

if TYPE_CHECKING:
    from tests.fakes.postgres import PostgresServer  # only where the package is installed

AGENTS = trials(test=4, soak=1000)
REPLICAS = trials(test=2, soak=3)
LEASE = 10
"""Of the clusters, in seconds: a cluster reads Unknown after five of them, which is longer than any of the faults."""
ROUNDS = trials(test=1, soak=10)
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
    async def probed() -> bool:
        return {await replica.probed() for replica in replicas} == {200 if ready else 500}

    await until(probed, what="every replica is ready" if ready else "no replica is ready")


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
        return status_of(document, AVAILABLE) == "Unknown"

    async with crowd.running(range(AGENTS - 1)):
        await crowd.all_heard_of(range(AGENTS - 1))
        await election.replicas.bench.cluster_when(name, unknown, what="reads Unknown")


@soaked(ROUNDS)
async def test_replicas_bear_whatever_happens_to_their_database(bench: Bench, databases: Databases) -> None:
    async with replicas_of(bench, databases.url) as replicas:
        election = Election(replicas)
        await election.start(REPLICAS, *FLAGS)
        crowd = await crowd_of(bench.admin, AGENTS)

        async def meanwhile() -> None:
            await all_are(replicas.all, ready=False)

        crash, refusal = partial(databases.restart, "immediate", meanwhile), partial(databases.take_no_writes, meanwhile)
        rest = [partial(databases.restart, "fast", meanwhile), partial(databases.lose_standby, meanwhile)]
        faults = [*([crash, refusal, *rest] * ROUNDS if SOAKING else [crash, refusal]), partial(databases.fail_over, meanwhile)]
        async with working(election, crowd):
            for fault in faults:
                await fault()
                await all_are(replicas.all, ready=True)
                await crowd.all_heard(asyncio.get_running_loop().time())
                await election.leader()
        await silent_is_noticed(election, crowd)
