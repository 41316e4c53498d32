"""Several replicas of one hub as processes: one database, one set of keys, a load balancer before them, and their election."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import Engine, NullPool, create_engine, make_url, text

from hub.api.certificates import Lifetimes
from hub.controllers import ACTOR
from hub.replica.keys import create_keys
from machinery.client.kubeconfig_documents import read_document
from machinery.client.rest import KubeClient
from machinery.errors import MusterError
from machinery.runtime.clock import SystemClock
from tests.e2e.processes import CLUSTERS, Bench, Program, free_port, status_of, until
from tests.fakes.forwarder import Forwarder


@dataclass
class Replica:
    """One process, and what it has for itself."""

    name: str
    folder: Path
    grpc_port: int = field(default_factory=free_port)
    https_port: int = field(default_factory=free_port)
    program: Program | None = None

    @property
    def data(self) -> Path:
        return self.folder / self.name

    @property
    def process(self) -> Program:
        assert self.program is not None
        return self.program

    async def client(self) -> KubeClient:
        """The administrator, at this replica's own HTTPS door. A context manager."""
        document = read_document(self.data / "admin.kubeconfig")
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.https_port}"
        return await KubeClient.from_document(document)

    async def probed(self, path: str = "/readyz") -> int:
        """The status of a probe, asked as a kubelet asks, which is nobody."""
        url = f"https://127.0.0.1:{self.https_port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as answer:
            return answer.status

    async def is_ready(self) -> bool:
        if not self.process.running:
            pytest.fail(f"{self.name} ended before it was ready:\n{self.process.output[-3000:]}", pytrace=False)
        async with await self.client() as client:
            return (await client.raw("GET", "/readyz")).status == 200


@dataclass
class Replicas:
    """`start` as many as are wanted; each has the flags that all have, and its own."""

    bench: Bench
    database: str  # URL
    grpc: Forwarder
    https: Forwarder
    flags: tuple[str, ...] = ()
    all: list[Replica] = field(default_factory=list)

    def __getitem__(self, number: int) -> Replica:
        return self.all[number]

    def prepared(self, *flags: str, environment: Callable[[str], dict[str, str]] | None = None) -> Replica:
        """One more, not yet started and not yet behind the balancer. `environment`: by the replica's name."""
        replica = Replica(f"hub-{len(self.all)}", self.bench.folder)
        self.all.append(replica)
        replica.program = self.bench.program(
            replica.name,
            *("hub", "serve", f"--replica-name={replica.name}", f"--data-dir={replica.data}"),
            *(f"--grpc-listen=127.0.0.1:{replica.grpc_port}", f"--https-listen=127.0.0.1:{replica.https_port}"),
            *(f"--grpc-advertised=127.0.0.1:{self.grpc.port}", f"--https-advertised=127.0.0.1:{self.https.port}"),
            *(f"--keys-dir={self.bench.folder / 'keys'}", *self.flags, *flags),
            environment={"HUB_DATABASE_URL": self.database, **(environment(replica.name) if environment else {})},
        )
        return replica

    async def start(self, count: int, *flags: str, **options: Any) -> list[Replica]:
        """Starts `count` more at the same moment; they are ready and behind the balancer when this returns."""
        started = [self.prepared(*flags, **options) for _ in range(count)]
        await asyncio.gather(*(replica.process.start() for replica in started))
        await asyncio.gather(*(self.ready(replica) for replica in started))
        return started

    async def ready(self, replica: Replica) -> None:
        """Waits for it, and puts it behind the balancer."""
        await until(replica.is_ready, what=f"{replica.name} is ready")
        for balancer, port in ((self.grpc, replica.grpc_port), (self.https, replica.https_port)):
            if port not in balancer.targets:
                balancer.targets.append(port)

    def leave(self, replica: Replica) -> None:
        """The balancer has noticed that it is not ready."""
        self.grpc.targets.remove(replica.grpc_port)
        self.https.targets.remove(replica.https_port)

    async def restart(self, replica: Replica) -> None:
        """The same process again, after it has ended."""
        await replica.process.start()
        await self.ready(replica)


@asynccontextmanager
async def replicas_of(bench: Bench, database: str, *flags: str) -> AsyncIterator[Replicas]:
    """No replica yet: their keys, the balancer, and a bench whose `data` is the first replica's."""
    create_keys(bench.folder / "keys", Lifetimes(), SystemClock().now())
    bench.data_name = "hub-0"
    async with AsyncExitStack() as stack:
        grpc = await stack.enter_async_context(Forwarder().serving(bench.grpc_port))
        yield Replicas(bench, database, grpc, await stack.enter_async_context(Forwarder().serving(bench.https_port)), flags)


@cache
def _engine(database: str) -> Engine:
    return create_engine(make_url(database).set(drivername="postgresql+psycopg"), poolclass=NullPool)


def rows(database: str, query: str) -> Sequence[Any]:
    """The answer of a hub's PostgreSQL itself, which answers when no replica does."""
    with _engine(database).connect() as connection:
        return connection.execute(text(query)).all()


LEASE, DEADLINE, RETRY, POLL = 4.0, 3.0, 0.5, 0.1
FAST = (
    f"--leader-elect-lease-duration={LEASE}s",
    f"--leader-elect-renew-deadline={DEADLINE}s",
    f"--leader-elect-retry-period={RETRY}s",
    f"--leader-elect-poll-period={POLL}s",
)
NOTES = (Path(__file__).parents[1] / "fixtures" / "election_notes.sql").read_text().replace("ACTOR", ACTOR)


def marked(url: str, replica: str) -> dict[str, str]:
    """The environment of a replica whose sessions say whose they are."""
    named = make_url(url).update_query_dict({"options": f"-c muster.replica={replica}"})
    return {"HUB_DATABASE_URL": named.render_as_string(hide_password=False)}


@dataclass
class Election:
    """The replicas, and what the database has noted."""

    replicas: Replicas
    ways: dict[str, str] = field(default_factory=dict)  # URLs of replicas that have a way of their own to the database

    async def ask(self, sql: str) -> Sequence[Any]:
        return await asyncio.to_thread(rows, self.replicas.database, sql)

    async def run(self, sql: str) -> None:
        def ran() -> None:
            with _engine(self.replicas.database).begin() as connection:
                connection.exec_driver_sql(sql)

        await asyncio.to_thread(ran)

    async def start(self, count: int, *flags: str) -> None:
        """Starts so many, and notes from then on."""

        def environment(name: str) -> dict[str, str]:
            return marked(self.ways.get(name, self.replicas.database), name)

        await self.replicas.start(count, *FAST, *flags, environment=environment)
        await self.run(NOTES)

    async def holder(self) -> tuple[str, int]:
        """The lock as it stands; "" is nobody."""
        rows = await self.ask("SELECT holder, term FROM leaders")
        return (rows[0][0], rows[0][1]) if rows else ("", 0)

    async def leader(self) -> Replica:
        async def known() -> str:
            return (await self.holder())[0]

        name = await until(known, what="somebody leads")
        return next(replica for replica in self.replicas.all if replica.name == name)

    async def followed(self, term: int) -> Replica:
        """The leader of a later term than that."""

        async def later() -> bool:
            holder, now = await self.holder()
            return bool(holder) and now > term

        await until(later, what=f"another leads after term {term}")
        return await self.leader()

    async def accept(self, name: str, at: Replica) -> None:
        """An operator's write at one replica, which a controller has to answer."""
        async with await at.client() as client:
            kind = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
            await client.create(CLUSTERS, {**kind, "metadata": {"name": name}, "spec": {"hubAcceptsClient": True}})

    async def answered(self, *names: str, at: Replica) -> None:
        """Controllers have answered all of these."""

        async def all_answered() -> bool:
            async with await at.client() as client:
                items = (await client.get(CLUSTERS))["items"]
            done = {item["metadata"]["name"] for item in items if status_of(item, "HubAcceptedManagedCluster") == "True"}
            return done >= set(names)

        await until(all_answered, what="the controllers have answered")

    async def writers(self) -> list[tuple[int, str]]:
        """Term and replica of every write of a controller, in the order of the commits."""
        return [(row.term, row.replica) for row in await self.ask("SELECT term, replica FROM noted_writes ORDER BY revision")]

    async def check(self) -> None:
        """Terms rise, never interleave, and in each of them its holder wrote and nobody else."""
        terms = await self.ask("SELECT term, holder, taken, released FROM noted_terms ORDER BY taken")
        assert all(earlier.term < later.term for earlier, later in pairwise(terms)), terms
        assert all(each.released is None or each.released >= each.taken for each in terms)
        holders = {row.term: row.holder for row in terms if row.holder}
        writers = await self.writers()
        assert all(holders[term] == replica for term, replica in writers), (holders, writers)
        assert [term for term, _ in writers] == sorted(term for term, _ in writers), writers

    @asynccontextmanager
    async def worked(self, usable: Sequence[Replica]) -> AsyncIterator[list[str]]:
        """Clusters are accepted all the time, at whichever replica is in `usable`; the names of those that were."""
        accepted: list[str] = []

        async def work() -> None:
            number = 0
            while True:
                number += 1
                for replica in tuple(usable):
                    with suppress(MusterError, OSError, TimeoutError):
                        await self.accept(f"edge-{number}", replica)
                        accepted.append(f"edge-{number}")
                        break
                await asyncio.sleep(0.02)

        task = asyncio.create_task(work())
        try:
            yield accepted
        finally:
            task.cancel()
            await asyncio.wait((task,))
