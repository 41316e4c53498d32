"""The typed client of the `kubernetes` package, as any other program would use it, against a hollow cluster."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes import aio
from kubernetes.aio.client.exceptions import ApiException

from hollow.cluster import HollowCluster

# Every field of the typed models is optional: as Any the tests can say what they expect.
kubernetes_client: Any = aio.client
kubernetes_config: Any = aio.config
kubernetes_watch: Any = aio.watch

CLAIMS = {"group": "cluster.open-cluster-management.io", "version": "v1alpha1", "plural": "clusterclaims"}


@pytest.fixture
async def api(hollow_cluster: HollowCluster) -> AsyncIterator[Any]:
    async with await kubernetes_config.new_client_from_config_dict(hollow_cluster.kubeconfig()) as connected:
        yield connected


def config_map(name: str, **labels: str) -> Any:
    return kubernetes_client.V1ConfigMap(metadata=kubernetes_client.V1ObjectMeta(name=name, labels=labels), data={"a": "1"})


async def test_nodes_are_listed_with_their_resources(api: Any) -> None:
    nodes = await kubernetes_client.CoreV1Api(api).list_node()
    assert [node.metadata.name for node in nodes.items] == ["test-node-0", "test-node-1", "test-node-2"]
    assert nodes.items[0].status.capacity["cpu"] == "8"
    assert nodes.items[0].status.node_info.kubelet_version == "v1.34.2"


async def test_claims_are_listed_as_custom_objects(api: Any) -> None:
    claims = await kubernetes_client.CustomObjectsApi(api).list_cluster_custom_object(**CLAIMS)
    assert "id.k8s.io" in {claim["metadata"]["name"] for claim in claims["items"]}


async def test_the_version_is_told(api: Any) -> None:
    assert (await kubernetes_client.VersionApi(api).get_code()).git_version == "v1.34.2"


async def test_a_secret_can_be_made_read_changed_and_deleted(api: Any) -> None:
    core = kubernetes_client.CoreV1Api(api)
    body = kubernetes_client.V1Secret(
        metadata=kubernetes_client.V1ObjectMeta(name="s"), data={"k": base64.b64encode(b"v").decode()}
    )
    created = await core.create_namespaced_secret("default", body)
    assert created.metadata.uid
    assert created.metadata.creation_timestamp
    created.data["k"] = base64.b64encode(b"w").decode()
    replaced = await core.replace_namespaced_secret("s", "default", created)
    assert int(replaced.metadata.resource_version) > int(created.metadata.resource_version)
    await core.delete_namespaced_secret("s", "default")
    with pytest.raises(ApiException) as refused:
        await core.read_namespaced_secret("s", "default")
    assert refused.value.status == 404


async def test_a_second_object_of_the_same_name_is_refused_with_already_exists(api: Any) -> None:
    core = kubernetes_client.CoreV1Api(api)
    await core.create_namespaced_config_map("default", config_map("twice"))
    with pytest.raises(ApiException) as refused:
        await core.create_namespaced_config_map("default", config_map("twice"))
    assert refused.value.status == 409
    assert '"reason":"AlreadyExists"' in str(refused.value.body).replace(" ", "")


async def test_an_update_of_what_changed_meanwhile_is_refused_with_conflict(api: Any) -> None:
    core = kubernetes_client.CoreV1Api(api)
    stale = await core.create_namespaced_config_map("default", config_map("raced"))
    await core.patch_namespaced_config_map("raced", "default", {"data": {"a": "2"}})
    stale.data["a"] = "3"
    with pytest.raises(ApiException) as refused:
        await core.replace_namespaced_config_map("raced", "default", stale)
    assert refused.value.status == 409
    assert '"reason":"Conflict"' in str(refused.value.body).replace(" ", "")


async def test_a_lease_keeps_its_microseconds(api: Any) -> None:
    leases = kubernetes_client.CoordinationV1Api(api)
    body = {
        "metadata": {"name": "beat"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 60, "renewTime": "2026-11-21T08:00:00.123456Z"},
    }
    await leases.create_namespaced_lease("default", body)
    read = await leases.read_namespaced_lease("beat", "default")
    assert read.spec.renew_time.microsecond == 123456


async def test_lists_are_paged_and_selected(api: Any) -> None:
    core = kubernetes_client.CoreV1Api(api)
    for index in range(5):
        await core.create_namespaced_config_map(
            "default", config_map(f"page-{index}", parity="even" if index % 2 == 0 else "odd")
        )
    first = await core.list_namespaced_config_map("default", limit=2)
    assert first.metadata.remaining_item_count == 3
    second = await core.list_namespaced_config_map("default", limit=2, _continue=first.metadata._continue)
    third = await core.list_namespaced_config_map("default", limit=2, _continue=second.metadata._continue)
    assert [item.metadata.name for page in (first, second, third) for item in page.items] == [f"page-{i}" for i in range(5)]
    assert not third.metadata._continue
    odd = await core.list_namespaced_config_map("default", label_selector="parity in (odd)")
    assert [item.metadata.name for item in odd.items] == ["page-1", "page-3"]
    one = await core.list_namespaced_config_map("default", field_selector="metadata.name=page-4")
    assert [item.metadata.name for item in one.items] == ["page-4"]


async def test_a_watch_tells_every_change_from_where_the_list_ended(api: Any) -> None:
    core = kubernetes_client.CoreV1Api(api)
    listed = await core.list_namespaced_config_map("default")
    seen: list[tuple[str, str]] = []

    async def follow() -> None:
        watch = kubernetes_watch.Watch()
        async with watch.stream(
            core.list_namespaced_config_map, "default", resource_version=listed.metadata.resource_version, timeout_seconds=5
        ) as events:
            async for event in events:
                seen.append((event["type"], event["object"].metadata.name))
                if event["type"] == "DELETED":
                    return

    following = asyncio.create_task(follow())
    await core.create_namespaced_config_map("default", config_map("watched"))
    await core.patch_namespaced_config_map("watched", "default", {"data": {"a": "2"}})
    await core.delete_namespaced_config_map("watched", "default")
    await asyncio.wait_for(following, 5)
    assert seen == [("ADDED", "watched"), ("MODIFIED", "watched"), ("DELETED", "watched")]


async def test_a_watch_from_a_forgotten_revision_is_refused_with_410(api: Any, hollow_cluster: HollowCluster) -> None:
    core = kubernetes_client.CoreV1Api(api)
    old = (await core.list_namespaced_config_map("default")).metadata.resource_version
    await core.create_namespaced_config_map("default", config_map("later"))
    await hollow_cluster.forget_history()
    with pytest.raises(ApiException) as refused:
        async with kubernetes_watch.Watch().stream(
            core.list_namespaced_config_map, "default", resource_version=old, timeout_seconds=2
        ) as events:
            await anext(aiter(events))
    assert refused.value.status == 410


async def test_a_stranger_is_refused(hollow_cluster: HollowCluster) -> None:
    document = hollow_cluster.kubeconfig()
    document["users"][0]["user"] = {"token": "guessed"}
    async with await kubernetes_config.new_client_from_config_dict(document) as stranger:
        with pytest.raises(ApiException) as refused:
            await kubernetes_client.CoreV1Api(stranger).list_node()
    assert refused.value.status == 401
