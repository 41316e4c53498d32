"""Hubs, hollow clusters and agents as processes, a PostgreSQL server, and the kernel's counters of processes."""

import asyncio
import inspect
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import click
from sqlalchemy import make_url

from hollow.demo.processes import Child, Children, ask
from hub.api.certificates import Lifetimes
from hub.replica.keys import create_keys
from machinery.client.rest import KubeClient
from machinery.runtime.clock import SystemClock

CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
AVAILABLE = "ManagedClusterConditionAvailable"
KIB_PER_MIB = 1024.0


def benchmark(measure: Callable[..., Coroutine[Any, Any, Any]]) -> click.Command:
    """Return the command of a measurement. It prints the result as JSON. Parameters, all with defaults, become options.

    `Annotated` specifies the help of an option, or its click type.
    """
    hints = get_type_hints(measure, include_extras=True)

    def run(**options: Any) -> None:
        click.echo(json.dumps(asyncio.run(measure(**options)), indent=2))

    command = click.command(measure.__name__, help=measure.__doc__)(run)
    for name, parameter in inspect.signature(measure).parameters.items():
        notes = getattr(hints[name], "__metadata__", ())
        option = click.Option(
            [f"--{name.replace('_', '-')}"],
            type=next((note for note in notes if not isinstance(note, str)), None),
            help=next((note for note in notes if isinstance(note, str)), None),
            default=parameter.default,
            show_default=True,
            is_flag=parameter.default is False,
        )
        command.params.append(option)
    return command


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def memory_mib(pid: int) -> tuple[float, float]:
    """Return PSS and RSS of a process in MiB."""
    found = {"Pss": 0.0, "Rss": 0.0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0]) / KIB_PER_MIB
    return found["Pss"], found["Rss"]


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def postgres_cpu_seconds(postmaster: int) -> float:
    """Return the user and system time of a PostgreSQL server in seconds: of the postmaster and all its children."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) == postmaster:
            total += sum(int(field) for field in fields[11:15])
        elif int(fields[1]) == postmaster:
            total += sum(int(field) for field in fields[11:13])
    return total / os.sysconf("SC_CLK_TCK")


@contextmanager
def postgres_for_hubs() -> Iterator[tuple[str, int]]:
    """Yield URL and postmaster pid of a test PostgreSQL server. All hubs that start in the block use it.

    The URL is in an environment variable, because it may contain a password.
    """
    from tests.fakes.postgres import postgres_server  # noqa: PLC0415 - starts a server

    with postgres_server(flushing=True) as url:
        os.environ["HUB_DATABASE_URL"] = url
        try:
            yield url, int(Path(str(make_url(url).query["host"]), "postmaster.pid").read_text("ascii").split()[0])
        finally:
            del os.environ["HUB_DATABASE_URL"]


def is_available(cluster: Mapping[str, Any]) -> bool:
    conditions = cluster.get("status", {}).get("conditions", [])
    return any(entry["type"] == AVAILABLE and entry["status"] == "True" for entry in conditions)


@dataclass
class Stage:
    """A hub with clusters and agents. Their files are in one temporary folder, and they use free ports."""

    folder: Path
    children: Children
    grpc_port: int
    https_port: int
    hub: Child | None = None

    @property
    def admin(self) -> Path:
        return self.folder / "hub" / "admin.kubeconfig"

    async def start(self, name: str, *arguments: str) -> Child:
        return await self.children.start(name, [sys.executable, "-m", *arguments])

    async def start_hub(self, *flags: str) -> Child:
        doors = (f"--grpc-listen=127.0.0.1:{self.grpc_port}", f"--https-listen=127.0.0.1:{self.https_port}")
        self.hub = await self.start("hub", "hub", "serve", f"--data-dir={self.folder / 'hub'}", *doors, *flags)
        await self.until(lambda: is_ready(self.admin), "the hub is ready")
        return self.hub

    def shared_keys(self) -> str:
        """Create the keys that several replicas share. Return the flag with their folder."""
        create_keys(self.folder / "keys", Lifetimes(), SystemClock().now())
        return f"--keys-dir={self.folder / 'keys'}"

    async def start_hollow(self, name: str) -> Path:
        kubeconfig = self.folder / f"{name}.kubeconfig"
        await self.start(f"hollow-{name}", "hollow", "serve", "--name", name, "--kubeconfig-out", str(kubeconfig))

        async def written() -> bool:
            return kubeconfig.exists()

        await self.until(written, f"hollow cluster {name} answers")
        return kubeconfig

    async def bootstrap(self, cluster: str, *options: str) -> Path:
        """Create a bootstrap kubeconfig for a cluster, or for all clusters whose names match a pattern with `*`."""
        file = self.folder / f"{cluster.replace('*', 'all')}.bootstrap"
        names = f"--cluster-pattern={cluster}" if "*" in cluster else f"--cluster={cluster}"
        await self.hubctl("create", "bootstrap-kubeconfig", names, "-o", str(file), "--allow-loopback", *options)
        return file

    async def hubctl(self, *arguments: str, within: float = 30.0) -> None:
        """Run hubctl as the administrator. Raises RuntimeError with its error, TimeoutError after `within` seconds."""
        answer = await ask([sys.executable, "-m", "hubctl", f"--kubeconfig={self.admin}", *arguments], within)
        if answer.returncode:
            raise RuntimeError(answer.stderr)

    async def until(self, condition: Callable[[], Any], what: str, within: float = 60.0, every: float = 0.02) -> None:
        async with asyncio.timeout(within):
            while not await condition():
                if self.hub is not None and self.hub.exit_code is not None:
                    raise RuntimeError(f"waiting until {what}: the hub {self.hub.how_it_ended()}: {self.hub.last_words()}")
                await asyncio.sleep(every)

    async def until_available(self, client: KubeClient, name: str, every: float = 0.02) -> None:
        async def available() -> bool:
            found = await client.find(f"{CLUSTERS}/{name}")
            return found is not None and is_available(found)

        await self.until(available, f"{name} is Available", every=every)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[KubeClient]:
        async with await KubeClient.from_file(self.admin) as client:
            yield client


async def is_ready(admin: Path) -> bool:
    try:
        async with await KubeClient.from_file(admin) as client:
            return (await client.raw("GET", "/readyz")).status == 200
    except Exception:  # noqa: BLE001 - not yet
        return False


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """Yield a stage without processes. At the end of the block all its processes end."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        async with Children(Path(folder) / "logs") as children:
            yield Stage(Path(folder), children, free_port(), free_port())
