"""A hub, hollow clusters and spokes as processes for a benchmark, and what the kernel says of them."""

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hollow.demo.processes import Child, Children, ask
from machinery.client.rest import KubeClient

CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
AVAILABLE = "ManagedClusterConditionAvailable"
MIB = 1024.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def memory_mib(pid: int) -> tuple[float, float]:
    """(PSS, RSS) of a process in MiB."""
    found = {"Pss": 0.0, "Rss": 0.0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0]) / MIB
    return found["Pss"], found["Rss"]


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_available(cluster: Mapping[str, Any]) -> bool:
    conditions = cluster.get("status", {}).get("conditions", [])
    return any(entry["type"] == AVAILABLE and entry["status"] == "True" for entry in conditions)


@dataclass
class Stage:
    """Everything in one temporary folder, on free ports."""

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
        """Returns when it is ready."""
        doors = (f"--grpc-listen=127.0.0.1:{self.grpc_port}", f"--https-listen=127.0.0.1:{self.https_port}")
        self.hub = await self.start("hub", "hub", "serve", f"--data-dir={self.folder / 'hub'}", *doors, *flags)
        await self.until(lambda: _answers(self.admin), "the hub is ready")
        return self.hub

    async def start_hollow(self, name: str) -> Path:
        kubeconfig = self.folder / f"{name}.kubeconfig"
        await self.start(f"hollow-{name}", "hollow", "serve", "--name", name, "--kubeconfig-out", str(kubeconfig))

        async def written() -> bool:
            return kubeconfig.exists()

        await self.until(written, f"hollow cluster {name} answers")
        return kubeconfig

    async def bootstrap(self, cluster: str) -> Path:
        file = self.folder / f"{cluster}.bootstrap"
        answer = await ask(
            [
                *(sys.executable, "-m", "hubctl", f"--kubeconfig={self.admin}"),
                *("create", "bootstrap-kubeconfig", f"--cluster={cluster}", "-o", str(file), "--allow-loopback"),
            ]
        )
        if answer.code:
            raise RuntimeError(answer.error)
        return file

    async def until(self, condition: Callable[[], Any], what: str, within: float = 60.0, every: float = 0.02) -> None:
        async with asyncio.timeout(within):
            while not await condition():
                if self.hub is not None and self.hub.exit_code is not None:
                    raise RuntimeError(f"waiting until {what}: the hub {self.hub.how_it_ended()}: {self.hub.last_words()}")
                await asyncio.sleep(every)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[KubeClient]:
        async with await KubeClient.from_file(self.admin) as client:
            yield client


async def _answers(admin: Path) -> bool:
    try:
        async with await KubeClient.from_file(admin) as client:
            return (await client.raw("GET", "/readyz")).status == 200
    except Exception:  # noqa: BLE001 - not yet
        return False


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """An empty stage; leaving it ends every process."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        async with Children(Path(folder) / "logs") as children:
            yield Stage(Path(folder), children, free_port(), free_port())
