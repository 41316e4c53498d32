"""Many hollow clusters in one process, with their kubeconfigs on disk."""

import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import yaml

from hollow.cluster import HollowCluster
from hollow.faults import HEALTHY, Faults
from hollow.objects import KUBERNETES_VERSION, ClusterShape
from machinery.errors import InvalidError
from machinery.identity import cluster_name

PLACEHOLDER = "{name}"
LAST_PORT = 65535
_VERSION = re.compile(r"v\d+\.\d+\.\d+([-+][-+.0-9A-Za-z]+)?")


@dataclass(frozen=True, slots=True)
class HollowFleet:
    """The clusters to serve, on ports from `port` upwards (0: free ports)."""

    shapes: tuple[ClusterShape, ...]
    kubeconfig_out: str
    """Path of the kubeconfigs; `{name}` is replaced by the cluster's name."""
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str = ""
    faults: Faults = HEALTHY

    def __post_init__(self) -> None:
        """Raises InvalidError for a fleet that cannot be served."""
        for shape in self.shapes:
            cluster_name(shape.name)
            if not _VERSION.fullmatch(shape.version):
                raise InvalidError(f'"{shape.version[:80]}" is no version of Kubernetes: use one like {KUBERNETES_VERSION}')
        if self.port + len(self.shapes) - 1 > LAST_PORT:
            raise InvalidError(f"{len(self.shapes)} clusters do not fit between port {self.port} and {LAST_PORT}")
        if len(self.shapes) > 1 and PLACEHOLDER not in self.kubeconfig_out:
            raise InvalidError(f"{len(self.shapes)} clusters need as many kubeconfigs: put {PLACEHOLDER} into the file's name")

    def kubeconfig_path(self, shape: ClusterShape) -> Path:
        return Path(self.kubeconfig_out.replace(PLACEHOLDER, shape.name))


def names(name: str, count: int) -> tuple[str, ...]:
    """`name` for one cluster, numbered from 0 for several."""
    return (name,) if count == 1 else tuple(f"{name}-{index}" for index in range(count))


@asynccontextmanager
async def serve_fleet(fleet: HollowFleet) -> AsyncIterator[Sequence[HollowCluster]]:
    """Serve the clusters for the length of the block.

    Each kubeconfig is written when its cluster answers. Raises UnavailableError for a port in use, OSError for a file that
    cannot be written.
    """
    async with AsyncExitStack() as stack:
        clusters = []
        for index, shape in enumerate(fleet.shapes):
            port = fleet.port + index if fleet.port else 0
            cluster = HollowCluster(shape, host=fleet.host, port=port, advertise=fleet.advertise)
            cluster.faults = fleet.faults
            await stack.enter_async_context(cluster)
            write_kubeconfig(cluster, fleet.kubeconfig_path(shape))
            clusters.append(cluster)
        yield clusters


def write_kubeconfig(cluster: HollowCluster, path: Path) -> None:
    """Atomically write the administrator's kubeconfig with mode 0600."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:  # created with mode 0600
        yaml.safe_dump(cluster.kubeconfig(), file, sort_keys=False)
    os.replace(file.name, path)  # noqa: PTH105 - the name is a string
