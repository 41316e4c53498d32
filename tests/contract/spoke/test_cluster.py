import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pytest

from hollow.cluster import HollowCluster
from hollow.faults import Faults
from machinery.errors import MusterError, UnavailableError
from machinery.kube.client import KubeClient, Resource
from machinery.timestamps import format_micro_time
from spoke.cluster import KubeCluster
from spoke.cluster.kube import CLAIMS, LEASES, NODES
from spoke.domain.report import ClusterClaim, NodeResources
from spoke.ports import Cluster, Health
from tests.fakes.cluster import MemoryCluster

NODE = NodeResources(name="n", capacity={"cpu": "4"}, allocatable={"cpu": "3900m"}, schedulable=True)
CORDONED = NodeResources(name="n", capacity={"cpu": "4"}, allocatable={"cpu": "3900m"}, schedulable=False)
CLAIM = ClusterClaim(name="c", value="1")
MOMENT = datetime(2026, 11, 21, 8, 0, 0, 123456, tzinfo=UTC)


class Stage(Protocol):
    """A cluster and the means to change it."""

    @property
    def cluster(self) -> Cluster: ...

    async def set_nodes(self, *nodes: NodeResources) -> None: ...
    async def set_claims(self, *claims: ClusterClaim) -> None: ...
    async def set_lease(self, namespace: str, name: str, renewed: datetime) -> None: ...
    async def break_down(self) -> None: ...


@dataclass
class MemoryStage:
    cluster: MemoryCluster

    async def set_nodes(self, *nodes: NodeResources) -> None:
        self.cluster.set_nodes(nodes)

    async def set_claims(self, *claims: ClusterClaim) -> None:
        self.cluster.set_claims(claims)

    async def set_lease(self, namespace: str, name: str, renewed: datetime) -> None:
        self.cluster.leases[namespace, name] = renewed

    async def break_down(self) -> None:
        self.cluster.fail = UnavailableError("broken")
        self.cluster.answered_health = Health(ok=False, status_code=500, detail="broken")


@dataclass
class HollowStage:
    cluster: KubeCluster
    client: KubeClient
    hollow: HollowCluster

    async def set_nodes(self, *nodes: NodeResources) -> None:
        await self._replace(NODES, "v1", "Node", {node.name: _node_fields(node) for node in nodes})

    async def set_claims(self, *claims: ClusterClaim) -> None:
        version = f"{CLAIMS.group}/{CLAIMS.version}"
        await self._replace(CLAIMS, version, "ClusterClaim", {claim.name: {"spec": {"value": claim.value}} for claim in claims})

    async def set_lease(self, namespace: str, name: str, renewed: datetime) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name},
            "spec": {"renewTime": format_micro_time(renewed)},
        }
        await self.client.create(LEASES.path(namespace=namespace), lease)

    async def break_down(self) -> None:
        self.hollow.faults = Faults(error=True)

    async def _replace(self, resource: Resource, api_version: str, kind: str, wanted: dict[str, dict[str, Any]]) -> None:
        present = {item["metadata"]["name"]: item for item in await self.client.list(resource.path())}
        for name in present.keys() - wanted.keys():
            await self.client.delete(resource.path(name))
        for name, fields in wanted.items():
            body = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}
            if name not in present:
                await self.client.create(resource.path(), {**body, **fields})
            else:
                await self.client.patch(resource.path(name), fields)


def _node_fields(node: NodeResources) -> dict[str, Any]:
    return {
        "spec": {"unschedulable": None if node.schedulable else True},
        "status": {"capacity": dict(node.capacity), "allocatable": dict(node.allocatable)},
    }


@asynccontextmanager
async def _memory(_hollow: HollowCluster) -> AsyncIterator[Stage]:
    yield MemoryStage(MemoryCluster())


@asynccontextmanager
async def _kubernetes(hollow: HollowCluster) -> AsyncIterator[Stage]:
    async with await KubeClient.from_document(hollow.kubeconfig()) as client:
        yield HollowStage(KubeCluster(client, coalesce=timedelta(milliseconds=10)), client, hollow)


@pytest.fixture(params=[_memory, _kubernetes])
async def stage(request: pytest.FixtureRequest, hollow_cluster: HollowCluster) -> AsyncIterator[Stage]:
    opened: AbstractAsyncContextManager[Stage] = request.param(hollow_cluster)
    async with opened as made:
        yield made


async def test_the_cluster_has_a_uid_and_a_version(stage: Stage) -> None:
    assert len(await stage.cluster.uid()) == 36
    assert await stage.cluster.uid() == await stage.cluster.uid()
    assert (await stage.cluster.version()).startswith("v1.")


async def test_nodes_are_told_with_their_resources(stage: Stage) -> None:
    await stage.set_nodes(NODE)
    assert list(await stage.cluster.nodes()) == [NODE]
    await stage.set_nodes(CORDONED)
    assert list(await stage.cluster.nodes()) == [CORDONED]


async def test_claims_are_told_by_name_and_value(stage: Stage) -> None:
    await stage.set_claims(CLAIM)
    assert list(await stage.cluster.claims()) == [CLAIM]
    await stage.set_claims()
    assert list(await stage.cluster.claims()) == []


async def test_a_lease_is_told_by_when_it_was_renewed(stage: Stage) -> None:
    assert await stage.cluster.lease_renewed_at("default", "addon") is None
    await stage.set_lease("default", "addon", MOMENT)
    assert await stage.cluster.lease_renewed_at("default", "addon") == MOMENT


async def test_a_healthy_cluster_is_told_so(stage: Stage) -> None:
    assert await stage.cluster.health() == Health(ok=True, status_code=200, detail="ok")


async def test_a_broken_cluster_is_unhealthy_and_its_reads_raise(stage: Stage) -> None:
    await stage.break_down()
    health = await stage.cluster.health()
    assert (health.ok, health.status_code) == (False, 500)
    reads: Sequence[Any] = (stage.cluster.uid, stage.cluster.version, stage.cluster.nodes, stage.cluster.claims)
    for read in reads:
        with pytest.raises(MusterError):
            await read()


async def test_changes_name_what_changed(stage: Stage) -> None:
    await stage.set_nodes(NODE)
    await stage.set_claims(CLAIM)
    async with asyncio.timeout(10), aclosing(stage.cluster.changes()) as changes:  # type: ignore[type-var]
        assert {await anext(changes), await anext(changes)} == {"nodes", "claims"}
        await stage.set_nodes(CORDONED)
        assert await anext(changes) == "nodes"
        await stage.set_claims()
        assert await anext(changes) == "claims"


LABEL = "clusterset.open-cluster-management.io/abc"


async def test_namespaces_are_made_with_a_label_and_found_by_it(stage: Stage) -> None:
    assert await stage.cluster.labelled_namespaces(LABEL) == frozenset()
    await stage.cluster.label_namespace("blue", LABEL, "true", create=True)
    await stage.cluster.label_namespace("red", LABEL, "true", create=True)
    assert await stage.cluster.labelled_namespaces(LABEL) == {"blue", "red"}
    await stage.cluster.label_namespace("blue", LABEL, "false", create=False)
    assert await stage.cluster.labelled_namespaces(LABEL) == {"red"}
    await stage.cluster.label_namespace("blue", LABEL, "true", create=True)
    assert await stage.cluster.labelled_namespaces(LABEL) == {"blue", "red"}


async def test_a_namespace_that_is_not_there_is_made_only_when_that_is_wanted(stage: Stage) -> None:
    await stage.cluster.label_namespace("gone", LABEL, "true", create=False)
    assert await stage.cluster.labelled_namespaces(LABEL) == frozenset()
