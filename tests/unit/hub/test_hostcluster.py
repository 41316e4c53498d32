"""The cluster that the hub runs in: off, nothing of it is there; on, it must be told where its agent is to be."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

from hub.access import Peers
from hub.hostcluster import HostCluster
from hub.settings import load
from machinery.clock import ManualClock
from machinery.errors import InvalidError
from machinery.tls import Serving
from tests.fakes.memory_store import MemoryStore

ON = {"kube_cert_agent": "true", "kube_cert_agent_image": "muster/hub:1"}


def host(**flags: object) -> HostCluster:
    return HostCluster(load(flags, None), ManualClock(), environment={})


def ways(cluster: HostCluster) -> int:
    clock = ManualClock()
    peers = Peers(MemoryStore(clock), clock)
    return len(cluster.ways_in(cast("Serving", None), peers.identify, peers.former))


async def start(cluster: HostCluster) -> None:
    async with AsyncExitStack() as stack:
        await cluster.start(MemoryStore(ManualClock()), lambda: True, stack, lambda _error: None)


async def test_off_nothing_signs_nobody_comes_in_and_nothing_is_started() -> None:
    cluster = host()
    assert (cluster.issuers, ways(cluster), cluster.snapshot()) == ((), 0, {"on": False})
    await start(cluster)
    cluster.lead(MemoryStore(ManualClock()))


def test_on_the_cas_issuer_comes_first_and_without_groups_nobody_comes_in() -> None:
    assert [issuer.name for issuer in host(**ON).issuers] == ["kubernetes"]
    assert ways(host(**ON)) == 0
    assert ways(host(**ON, kubernetes_ca_groups=("ops",))) == 1


async def test_it_must_be_told_where_its_agent_is_to_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="kube_cert_agent_namespace, or POD_NAMESPACE"):
        await start(host(**ON, management_cluster=str(tmp_path / "none")))
