"""pytest fixture that starts a Kubernetes API, without Docker, etcd or binaries.

Name the plug-in in `conftest.py`, and take `hollow_cluster` in a test:

    pytest_plugins = ["hollow.pytest_plugin"]

    def test_scales(hollow_cluster):
        apps = kubernetes.client.AppsV1Api(hollow_cluster.client)

Each test gets a new cluster. To share one cluster in a module, serve it in a fixture of your own:

    @pytest.fixture(scope="module")
    def cluster(tmp_path_factory):
        with serve_cluster(tmp_path_factory.mktemp("cluster"), nodes=5) as cluster:
            yield cluster

PYTEST_DONT_REWRITE: this module contains no assertions, and a test module may import it before pytest does.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient
from kubernetes.config import new_client_from_config

from hollow.cluster import HollowCluster, HollowFleet, write_kubeconfig
from hollow.faults import Faults
from hollow.objects import KUBERNETES_VERSION, ClusterShape

Call = Callable[[Coroutine[Any, Any, None]], None]


@dataclass(frozen=True, slots=True)
class ServedCluster:
    """A hollow cluster. It runs on its own thread, so that a test and its client can block."""

    name: str
    kubeconfig: Path
    """The administrator's kubeconfig, for kubectl, Helm or the program under test."""
    client: ApiClient
    """A client with the rights of the administrator. It is closed when the cluster stops."""
    _cluster: HollowCluster = field(repr=False)
    _call: Call = field(repr=False)

    def set_faults(self, *faults: str) -> None:
        """Replace the active faults. Without arguments, the cluster is healthy. Names are those of `hollow fault --help`.

        Raises InvalidError for an unknown fault.
        """
        wanted = Faults.named(*faults)

        async def switch() -> None:
            self._cluster.faults = wanted

        self._call(switch())

    def expire_history(self) -> None:
        """Abort all watches and compact the history. A watch from an earlier resourceVersion then gets 410."""

        async def expire() -> None:
            await self._cluster.forget_history()
            self._cluster.cut_watches()

        self._call(expire())


@contextmanager
def serve_cluster(
    folder: Path, *, name: str = "hollow", nodes: int = 3, version: str = KUBERNETES_VERSION
) -> Iterator[ServedCluster]:
    """Serve a cluster on the loopback address until the end of the block. Write its kubeconfig to `folder`.

    Raises InvalidError for an invalid name or version.
    """
    path = folder / f"{name}.kubeconfig"
    [shape] = HollowFleet((ClusterShape(name, nodes=nodes, version=version),), str(path)).shapes
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=f"hollow {name}", daemon=True)
    thread.start()

    def call(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result()

    try:
        cluster = HollowCluster(shape)
        call(cluster.start())
        try:
            write_kubeconfig(cluster, path)
            with new_client_from_config(str(path)) as client:
                yield ServedCluster(name, path, client, cluster, call)
        finally:
            call(cluster.stop())
            call(loop.shutdown_asyncgens())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def hollow_cluster(tmp_path: Path) -> Iterator[ServedCluster]:
    """A new Kubernetes cluster with the name `hollow` and three nodes, for one test."""
    with serve_cluster(tmp_path) as cluster:
        yield cluster
