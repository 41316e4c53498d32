from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hollow.cluster import HollowCluster
from hollow.faults import Faults
from machinery.client.rest import KubeClient, RestResource
from machinery.errors import MusterError, UnavailableError
from machinery.meta.timestamps import format_micro_time
from machinery.runtime.clock import SystemClock
from spoke.cluster import CLAIMS, LEASES, NODES, KubeCluster
from spoke.domain.report import NodeResources, ReportedClaim
from spoke.observability.event_recorder import KubeEvents
from spoke.ports.cluster import ApiServerHealth
from tests.fakes.cluster import MemoryCluster

NODE = NodeResources(name="n", capacity={"cpu": "4"}, allocatable={"cpu": "3900m"}, schedulable=True)
CORDONED = NodeResources(name="n", capacity={"cpu": "4"}, allocatable={"cpu": "3900m"}, schedulable=False)
CLAIM = ReportedClaim(name="c", value="1")
MOMENT = datetime(2026, 11, 21, 8, 0, 0, 123456, tzinfo=UTC)


@dataclass
class MemoryStage:
    """A cluster and the means to change it."""

    cluster: MemoryCluster

    async def set_nodes(self, *nodes: NodeResources) -> None:
        self.cluster.set_nodes(nodes)

    async def set_claims(self, *claims: ReportedClaim) -> None:
        self.cluster.set_claims(claims)

    async def set_lease(self, namespace: str, name: str, renewed: datetime) -> None:
        self.cluster.leases[namespace, name] = renewed

    async def break_down(self) -> None:
        self.cluster.fail = UnavailableError("broken")
        self.cluster.answered_health = ApiServerHealth(ok=False, status_code=500, detail="broken")


@dataclass
class HollowStage:
    cluster: KubeCluster
    client: KubeClient
    hollow: HollowCluster

    async def set_nodes(self, *nodes: NodeResources) -> None:
        await self._replace(NODES, "v1", "Node", {node.name: _node_fields(node) for node in nodes})

    async def set_claims(self, *claims: ReportedClaim) -> None:
        version = f"{CLAIMS.group}/{CLAIMS.version}"
        await self._replace(CLAIMS, version, "ClusterClaim", {claim.name: {"spec": {"value": claim.value}} for claim in claims})

    async def set_lease(self, namespace: str, name: str, renewed: datetime) -> None:
        lease = {"metadata": {"name": name}, "spec": {"renewTime": format_micro_time(renewed)}}
        await self.client.create(LEASES.path(namespace=namespace), lease)

    async def break_down(self) -> None:
        self.hollow.faults = Faults(error=True)

    async def _replace(self, resource: RestResource, api_version: str, kind: str, wanted: dict[str, dict[str, Any]]) -> None:
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
    status = {"capacity": dict(node.capacity), "allocatable": dict(node.allocatable)}
    return {"spec": {"unschedulable": None if node.schedulable else True}, "status": status}


Stage = MemoryStage | HollowStage


@pytest.fixture(params=["memory", "kubernetes"])
async def stage(request: pytest.FixtureRequest, hollow_cluster: HollowCluster, client: KubeClient) -> Stage:
    if request.param == "memory":
        return MemoryStage(MemoryCluster())
    return HollowStage(KubeCluster(client, coalesce=timedelta(milliseconds=10)), client, hollow_cluster)


async def test_cluster_reports_its_identity_nodes_claims_leases_changes_and_health(stage: Stage) -> None:
    cluster = stage.cluster
    assert len(await cluster.uid()) == 36
    assert await cluster.uid() == await cluster.uid()
    assert (await cluster.version()).startswith("v1.")
    assert await cluster.lease_renewed_at("default", "addon") is None
    await stage.set_lease("default", "addon", MOMENT)
    assert await cluster.lease_renewed_at("default", "addon") == MOMENT
    await stage.set_nodes(NODE)
    await stage.set_claims(CLAIM)
    assert (list(await cluster.nodes()), list(await cluster.claims())) == ([NODE], [CLAIM])
    async with aclosing(cluster.changes()) as changes:  # type: ignore[type-var]
        assert {await anext(changes), await anext(changes)} == {"nodes", "claims"}
        await stage.set_nodes(CORDONED)
        assert await anext(changes) == "nodes"
        await stage.set_claims()
        assert await anext(changes) == "claims"
    assert (list(await cluster.nodes()), list(await cluster.claims())) == ([CORDONED], [])
    assert await cluster.health() == ApiServerHealth(ok=True, status_code=200, detail="ok")
    await stage.break_down()
    health = await cluster.health()
    assert (health.ok, health.status_code) == (False, 500)
    reads: Sequence[Any] = (cluster.uid, cluster.version, cluster.nodes, cluster.claims)
    for read in reads:
        with pytest.raises(MusterError):
            await read()


LABEL = "clusterset.open-cluster-management.io/abc"


async def test_namespaces_are_found_by_a_label_and_made_only_when_that_is_wanted(stage: Stage) -> None:
    await stage.cluster.label_namespace("gone", LABEL, "true", create=False)
    assert await stage.cluster.labelled_namespaces(LABEL) == frozenset()
    await stage.cluster.label_namespace("blue", LABEL, "true", create=True)
    await stage.cluster.label_namespace("red", LABEL, "true", create=True)
    assert await stage.cluster.labelled_namespaces(LABEL) == {"blue", "red"}
    await stage.cluster.label_namespace("blue", LABEL, "false", create=False)
    assert await stage.cluster.labelled_namespaces(LABEL) == {"red"}
    await stage.cluster.label_namespace("blue", LABEL, "true", create=True)
    assert await stage.cluster.labelled_namespaces(LABEL) == {"blue", "red"}


NAMESPACE = "open-cluster-management-agent"


async def test_an_announcement_is_an_event_about_the_owners_secret(client: KubeClient) -> None:
    await client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    events = KubeEvents(client, NAMESPACE, SystemClock())
    await events.announce("HubFailedOver", "from a to b", warning=False)
    await events.announce("HubEpochRaised", "x" * 5000, warning=True)
    found = await client.list(f"/api/v1/namespaces/{NAMESPACE}/events")
    told = {event["reason"]: event for event in found}
    assert told["HubFailedOver"]["message"] == "from a to b"
    assert told["HubFailedOver"]["involvedObject"]["name"] == "hub-kubeconfig-secret"
    assert (told["HubEpochRaised"]["type"], len(told["HubEpochRaised"]["message"])) == ("Warning", 1024)
