"""Several replicas of one hub as processes: one database, one set of keys, and a load balancer before them.

`Bench` sees the hub as agents and operators see it, by the balancer's ports; a `Replica` is one process, by its own.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hub.domain.certificate import Lifetimes
from hub.keys import create_keys
from machinery.clock import SystemClock
from machinery.kube import config
from machinery.kube.client import KubeClient
from tests.e2e.processes import Bench, Program, free_port, until
from tests.fakes.balancer import Balancer


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
        document = config.read_kubeconfig(self.data / "admin.kubeconfig")
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.https_port}"
        return await KubeClient.from_document(document)

    async def is_ready(self) -> bool:
        if not self.process.running:
            pytest.fail(f"{self.name} ended before it was ready:\n{self.process.output[-3000:]}", pytrace=False)
        async with await self.client() as client:
            return (await client.raw("GET", "/readyz")).status == 200


@dataclass
class Replicas:
    """`start` as many as are wanted; each has the flags that all have, and its own."""

    bench: Bench
    database: str
    """URL."""
    grpc: Balancer
    https: Balancer
    flags: tuple[str, ...] = ()
    all: list[Replica] = field(default_factory=list)

    def __getitem__(self, number: int) -> Replica:
        return self.all[number]

    def prepared(self, *flags: str, environment: dict[str, str] | None = None) -> Replica:
        """One more, not yet started and not yet behind the balancer."""
        replica = Replica(f"hub-{len(self.all)}", self.bench.folder)
        self.all.append(replica)
        replica.program = self.bench.program(
            replica.name,
            *("hub", "serve", f"--replica-name={replica.name}", f"--data-dir={replica.data}"),
            *(f"--grpc-listen=127.0.0.1:{replica.grpc_port}", f"--https-listen=127.0.0.1:{replica.https_port}"),
            *(f"--grpc-advertised=127.0.0.1:{self.grpc.port}", f"--https-advertised=127.0.0.1:{self.https.port}"),
            *(f"--keys-dir={self.bench.folder / 'keys'}", *self.flags, *flags),
            environment={"HUB_DATABASE_URL": self.database, **(environment or {})},
        )
        return replica

    async def start(self, count: int, *flags: str) -> list[Replica]:
        """Starts `count` more at the same moment; they are ready and behind the balancer when this returns."""
        started = [self.prepared(*flags) for _ in range(count)]
        await asyncio.gather(*(replica.process.start() for replica in started))
        await asyncio.gather(*(self.ready(replica) for replica in started))
        return started

    async def ready(self, replica: Replica) -> None:
        """Waits for it, and puts it behind the balancer."""
        await until(replica.is_ready, what=f"{replica.name} is ready", within=90)
        for balancer, port in ((self.grpc, replica.grpc_port), (self.https, replica.https_port)):
            if port not in balancer.ports:
                balancer.ports.append(port)

    def leave(self, replica: Replica) -> None:
        """The balancer has noticed that it is not ready."""
        self.grpc.ports.remove(replica.grpc_port)
        self.https.ports.remove(replica.https_port)

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
        grpc = await stack.enter_async_context(Balancer().serving(bench.grpc_port))
        https = await stack.enter_async_context(Balancer().serving(bench.https_port))
        yield Replicas(bench, database, grpc, https, flags)
