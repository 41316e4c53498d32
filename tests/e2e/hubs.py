"""Several hubs as processes behind forwarders, and what their databases and clusters show from outside."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from hollow.cluster import HollowCluster, write_kubeconfig
from hollow.objects import ClusterShape
from hub.api.managedclusters.agent_annotations import AgentHubState, hubs_of
from machinery.client.kubeconfig import read_kubeconfig
from machinery.client.rest import KubeClient, RestResource
from machinery.errors import NotFoundError
from tests.e2e.processes import AVAILABLE, Bench, Program, free_port, until
from tests.fakes.forwarder import Forwarder

NAMESPACE = "open-cluster-management-agent"
OWNER_SECRET = "hub-kubeconfig-secret"  # noqa: S105 - the name of a secret
SECRETS = RestResource("", "v1", "secrets")
HERE = "ManagedClusterAvailable"
ELSEWHERE = ("ManagedClusterStandby", "ManagedClusterMoved")
QUICK = ("--auto-approve=*", "--default-lease-duration=2s", "--beat-interval=300ms", "--flush-window=50ms")


def now() -> int:
    """As hubs write down instants: microseconds since 1970."""
    return time.time_ns() // 1000


def reason_of(document: Mapping[str, Any]) -> str:
    """Why the cluster is Available, or not; empty: nobody has said."""
    found = [each for each in document.get("status", {}).get("conditions", []) if each["type"] == AVAILABLE]
    return str(found[0]["reason"]) if found else ""


@dataclass(frozen=True, slots=True)
class Row:
    """What a hub has stored of a cluster's session, read at one instant."""

    beat: int  # when the newest beat came, in microseconds since 1970; 0: none ever did
    epoch: int  # the highest that the hub has heard of; 0: none


@dataclass
class Hub(Bench):
    """One of several hubs: a bench whose data and log bear the hub's name."""

    path: Forwarder = field(default_factory=Forwarder)
    flags: tuple[str, ...] = QUICK
    process: Program | None = None

    @property
    def name(self) -> str:
        return self.data_name

    @property
    def database(self) -> Path:
        return self.data / "hub.db"

    @property
    def serving(self) -> Program:
        assert self.process is not None
        return self.process

    async def start(self) -> Self:
        """For the first time, or again after its end; returns when it is ready."""
        if self.process is None:
            self.process = self.hub_program(f"--grpc-advertised=127.0.0.1:{self.path.port}", *self.flags, name=self.name)
        await self.process.start()
        await self.ready(self.process)
        return self

    async def kill(self) -> None:
        await self.serving.kill()

    @property
    def id(self) -> str:
        """As in its administrator's kubeconfig."""
        return read_kubeconfig(self.admin).require_endpoint().hub_id

    def row(self, cluster: str) -> Row:
        return self.rows().get(cluster, Row(0, 0))

    def rows(self) -> dict[str, Row]:
        """Of every cluster that was ever heard of, all read at one instant."""
        rows = self.stored("SELECT cluster, at, epoch FROM heartbeats")
        return {cluster: Row(beat or 0, epoch or 0) for cluster, beat, epoch in rows}

    async def shows(self, cluster: str, *reasons: str) -> Any:
        """Returns when the hub says for one of these reasons whether the cluster is Available."""
        return await self.cluster_when(cluster, lambda one: reason_of(one) in reasons, what=f"is {' or '.join(reasons)}")

    def secret(self) -> str:
        """The name of the credential slot that agents keep for it."""
        return f"{OWNER_SECRET}-{self.id[:8]}"


@dataclass
class Hubs:
    """The hubs in the order in which agents prefer them, the clusters, and their agents."""

    folder: Path
    stack: AsyncExitStack
    all: list[Hub] = field(default_factory=list)
    clusters: dict[str, HollowCluster] = field(default_factory=dict)
    programs: list[Program] = field(default_factory=list)

    def __getitem__(self, number: int) -> Hub:
        return self.all[number]

    async def start(self, count: int, *flags: str) -> None:
        """So many more, at the same moment; each has QUICK's flags and these."""
        before = len(self.all)
        for _ in range(count):
            hub = Hub(self.folder, data_name=f"hub-{len(self.all)}", flags=(*QUICK, *flags))
            hub.path = await self.stack.enter_async_context(Forwarder(hub.grpc_port).serving(free_port()))
            self.stack.push_async_callback(hub.close)
            self.all.append(hub)
        await asyncio.gather(*(hub.start() for hub in self.all[before:]))

    async def cluster(self, name: str) -> HollowCluster:
        """A hollow cluster in this process; the same one for the same name."""
        if name not in self.clusters:
            self.clusters[name] = cluster = await self.stack.enter_async_context(
                HollowCluster(ClusterShape(name, nodes=1, claims=0))
            )
            write_kubeconfig(cluster, self.kubeconfig(name))
        return self.clusters[name]

    def kubeconfig(self, cluster: str) -> Path:
        return self.folder / f"{cluster}.kubeconfig"

    async def bootstraps(self, cluster: str, *options: str) -> list[Path]:
        """A bootstrap kubeconfig of every hub, in order; those that were made before are left as they are."""
        folder = self.folder / f"{cluster}.bootstraps"
        folder.mkdir(exist_ok=True)
        files = [folder / f"{hub.name}.kubeconfig" for hub in self.all]
        create = ("create", "bootstrap-kubeconfig", f"--cluster={cluster}", "--allow-loopback", *options)
        missing = [(hub, file) for hub, file in zip(self.all, files, strict=True) if not file.exists()]
        await asyncio.gather(*(hub.hubctl(*create, "-o", str(file)) for hub, file in missing))
        return files

    async def prepared(self, cluster: str, *flags: str, name: str = "", count: int = 2) -> Program:
        """An agent that is not started yet, which knows the first hubs, so many."""
        await self.cluster(cluster)
        files = (await self.bootstraps(cluster))[:count]
        program = Program(
            name or f"spoke-{cluster}",
            (
                *("spoke", "run", f"--cluster-name={cluster}", f"--kubeconfig={self.kubeconfig(cluster)}"),
                *(f"--bootstrap-kubeconfig={file}" for file in files),
                *flags,
            ),
            self.folder / f"{name or f'spoke-{cluster}'}.log",
        )
        self.programs.append(program)
        return program

    async def spoke(self, cluster: str, *flags: str, count: int = 2) -> Program:
        return await (await self.prepared(cluster, *flags, count=count)).start()

    @asynccontextmanager
    async def kubernetes(self, cluster: str) -> AsyncIterator[KubeClient]:
        """The cluster's administrator."""
        async with await KubeClient.from_file(self.kubeconfig(cluster)) as client:
            yield client

    async def secret(self, cluster: str, name: str = OWNER_SECRET) -> dict[str, bytes]:
        """What a secret of the agent's namespace holds; empty: there is none."""
        async with self.kubernetes(cluster) as client:
            try:
                found = await client.get(SECRETS.path(name, namespace=NAMESPACE))
            except NotFoundError:
                return {}
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}

    async def reserve(self, cluster: str, owner: int = 0, count: int = 2) -> None:
        """Returns when the cluster is Available on its owner, and its agent stands by at the others of the first `count`.

        The owner has heard of it too.
        """
        for number, hub in enumerate(self.all[:count]):
            await hub.shows(cluster, *([HERE] if number == owner else ELSEWHERE))

        def received(one: Mapping[str, Any]) -> bool:
            return len([hub for hub in hubs_of(one) if hub.get("state") == AgentHubState.READY]) >= count

        await self.all[owner].cluster_when(cluster, received, what=f"has {count} hubs that are ready")

    async def raise_epoch_above(self) -> None:
        """Ends all agents; every hub runs, and is reached."""
        for program in self.programs:
            if program.running:
                await program.kill()
        for hub in self.all:
            hub.path.resume()
            await hub.path.take()
            if not hub.serving.running:
                await hub.start()

    async def beats(self, cluster: str, hub: Hub, since: int) -> int:
        """Returns the instant of the first beat on that hub after `since`; both in microseconds since 1970."""

        async def arrived() -> int:
            beat = hub.row(cluster).beat
            return beat if beat > since else 0

        return int(await until(arrived, what=f"a beat of {cluster} on {hub.name}"))

    @property
    def logs(self) -> str:
        """All that any program said."""
        return "".join(each.output for each in (*self.programs, *(each for hub in self.all for each in hub.programs)))


@asynccontextmanager
async def hubs_in(folder: Path) -> AsyncIterator[Hubs]:
    """No hub yet; whatever is started ends with the block."""
    async with AsyncExitStack() as stack:
        hubs = Hubs(folder, stack)
        try:
            yield hubs
        finally:
            for program in reversed(hubs.programs):
                if program.running:
                    await program.kill()


def hub_id_of(contents: Mapping[str, bytes]) -> str:
    """The owner hub that a credential secret names."""
    return contents.get("hub-id", b"").decode()
