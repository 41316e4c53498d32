"""The adapters of the spoke against a hollow cluster that is ill."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta

import pytest

from hollow.cluster import HollowCluster
from hollow.faults import Faults
from machinery.errors import DeadlineError, ForbiddenError, InvalidError, MusterError, UnavailableError
from machinery.kube.client import KubeClient
from spoke.cluster import KubeCluster
from spoke.credentials import KubeSecrets
from spoke.gates import FeatureGates
from spoke.ports import Health

SHORT = timedelta(milliseconds=100)
AGENT = "open-cluster-management-agent"


@pytest.fixture
async def client(hollow_cluster: HollowCluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as connected:
        yield connected


async def test_the_spoke_only_claims_are_not_told(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    claims = "/apis/cluster.open-cluster-management.io/v1alpha1/clusterclaims"
    label = {"metadata": {"labels": {"open-cluster-management.io/spoke-only": ""}}}
    await client.patch(f"{claims}/id.k8s.io", label)
    told = {claim.name: claim.value for claim in await KubeCluster(client).claims()}
    assert "id.k8s.io" not in told
    assert told["kubeversion.open-cluster-management.io"] == hollow_cluster.shape.version
    assert len(told) == hollow_cluster.shape.claims - 1


async def test_properties_are_told_where_their_gate_is_on_and_win_over_claims(
    hollow_cluster: HollowCluster, client: KubeClient
) -> None:
    properties = "/apis/about.k8s.io/v1alpha1/clusterproperties"
    body = {"apiVersion": "about.k8s.io/v1alpha1", "kind": "ClusterProperty"}
    hidden = {"labels": {"open-cluster-management.io/spoke-only": ""}}
    await client.create(properties, {**body, "metadata": {"name": "id.k8s.io"}, "spec": {"value": "of the property"}})
    await client.create(properties, {**body, "metadata": {"name": "hidden", **hidden}, "spec": {"value": "x"}})

    async def told(gates: FeatureGates) -> dict[str, str]:
        return {claim.name: claim.value for claim in await KubeCluster(client, gates=gates).claims()}

    both = await told(FeatureGates(cluster_property=True))
    assert both["id.k8s.io"] == "of the property"
    assert len(both) == hollow_cluster.shape.claims
    assert await told(FeatureGates(cluster_claim=False, cluster_property=True)) == {"id.k8s.io": "of the property"}
    assert (await told(FeatureGates()))["id.k8s.io"] != "of the property"
    assert await told(FeatureGates(cluster_claim=False)) == {}


async def test_the_uid_of_the_cluster_is_the_one_of_kube_system(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    assert await KubeCluster(client).uid() == hollow_cluster.shape.cluster_uid


async def test_without_livez_healthz_decides(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    hollow_cluster.faults = Faults(no_livez=True)
    assert await KubeCluster(client).health() == Health(ok=True, status_code=200, detail="ok")
    hollow_cluster.faults = Faults(no_livez=True, not_live=True)
    assert (await KubeCluster(client).health()).status_code == 500


async def test_a_cluster_that_is_not_live_says_which_check_failed_and_still_answers(
    hollow_cluster: HollowCluster, client: KubeClient
) -> None:
    hollow_cluster.faults = Faults(not_live=True)
    health = await KubeCluster(client).health()
    assert (health.ok, health.status_code) == (False, 500)
    assert "[-]etcd failed" in health.detail
    assert len(await KubeCluster(client).nodes()) == hollow_cluster.shape.nodes


async def test_a_failing_api_server_is_unavailable(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    hollow_cluster.faults = Faults(error=True)
    with pytest.raises(UnavailableError, match="told to fail"):
        await KubeCluster(client).nodes()
    assert (await KubeCluster(client).health()).ok is False


async def test_a_slow_api_server_is_waited_for(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    hollow_cluster.faults = Faults(slow=SHORT)
    assert len(await KubeCluster(client).nodes()) == hollow_cluster.shape.nodes


@pytest.mark.parametrize("faults", [Faults(slow=timedelta(seconds=30)), Faults(hang=True)])
async def test_an_api_server_that_does_not_answer_is_given_up_in_time(hollow_cluster: HollowCluster, faults: Faults) -> None:
    hollow_cluster.faults = faults
    async with await KubeClient.from_document(hollow_cluster.kubeconfig(), within=timedelta(seconds=1)) as client:
        health = await KubeCluster(client, health_timeout=SHORT).health()
        assert (health.ok, health.status_code) == (False, None)
        assert "in time" in health.detail
        with pytest.raises(DeadlineError):
            await KubeCluster(client).nodes()


async def test_an_api_server_that_is_away_is_unhealthy_and_named(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    await hollow_cluster.stop()
    health = await KubeCluster(client).health()
    assert (health.ok, health.status_code) == (False, None)
    assert hollow_cluster.url in health.detail


async def test_secrets_that_cannot_be_written_can_be_read(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    secrets = KubeSecrets(client, AGENT)
    written = await secrets.write("s", {"a": b"1"}, None)
    hollow_cluster.faults = Faults(refuse_secret_writes=True)
    with pytest.raises(ForbiddenError):
        await secrets.write("s", {"a": b"2"}, written.version)
    with pytest.raises(ForbiddenError):
        await secrets.write("t", {"a": b"2"}, None)
    with pytest.raises(ForbiddenError):
        await secrets.delete("s")
    assert await secrets.read("s") == written


async def test_labels_and_type_of_a_secret_survive_a_write(client: KubeClient) -> None:
    path = f"/api/v1/namespaces/{AGENT}/secrets"
    made = {"metadata": {"name": "s", "labels": {"owner": "somebody"}}, "type": "Opaque", "data": {"a": "MQ=="}}
    await client.create(path, {"apiVersion": "v1", "kind": "Secret", **made})
    secrets = KubeSecrets(client, AGENT)
    await secrets.write("s", {"b": b"2"}, (await secrets.read("s")).version)
    stored = await client.get(f"{path}/s")
    assert stored["metadata"]["labels"] == {"owner": "somebody"}
    assert stored["data"] == {"b": "Mg=="}


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_secret_too_large_to_store_is_refused(client: KubeClient) -> None:
    with pytest.raises(InvalidError):
        await KubeSecrets(client, AGENT).write("s", {"a": b"x" * 1_100_000}, None)


async def test_a_namespace_that_is_not_there_is_an_error_and_not_a_missing_secret(client: KubeClient) -> None:
    with pytest.raises(MusterError, match="nowhere"):
        await KubeSecrets(client, "nowhere").write("s", {"a": b"1"}, None)


async def test_changes_go_on_after_the_api_server_was_away(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    secrets = KubeSecrets(client, AGENT)
    first = await secrets.write("s", {"a": b"1"}, None)
    async with asyncio.timeout(20), aclosing(secrets.changes("s")) as changes:  # type: ignore[type-var]
        assert await anext(changes) == first
        await hollow_cluster.stop()
        await hollow_cluster.start()
        await hollow_cluster.forget_history()
        second = await secrets.write("s", {"a": b"2"}, first.version)
        assert await anext(changes) == second


async def test_a_burst_of_node_changes_is_told_once(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    cluster = KubeCluster(client, coalesce=timedelta(milliseconds=300))
    async with asyncio.timeout(10), aclosing(cluster.changes()) as changes:  # type: ignore[type-var]
        assert {await anext(changes), await anext(changes)} == {"nodes", "claims"}
        for index in range(hollow_cluster.shape.nodes):
            await client.patch(f"/api/v1/nodes/test-node-{index}", {"spec": {"unschedulable": True}})
        assert await anext(changes) == "nodes"
        await client.delete("/apis/cluster.open-cluster-management.io/v1alpha1/clusterclaims/id.k8s.io")
        assert await anext(changes) == "claims"


async def test_a_nodes_heartbeat_is_no_change(client: KubeClient) -> None:
    cluster = KubeCluster(client, coalesce=timedelta(milliseconds=10))
    async with asyncio.timeout(10), aclosing(cluster.changes()) as changes:  # type: ignore[type-var]
        assert {await anext(changes), await anext(changes)} == {"nodes", "claims"}
        await client.patch("/api/v1/nodes/test-node-0", {"metadata": {"annotations": {"beat": "1"}}})
        await client.delete("/apis/cluster.open-cluster-management.io/v1alpha1/clusterclaims/id.k8s.io")
        assert await anext(changes) == "claims"
