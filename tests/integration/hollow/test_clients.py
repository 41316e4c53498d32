"""kubectl, the typed Kubernetes client and our reflector against a hollow cluster."""

import asyncio
import base64
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from kubernetes import aio
from kubernetes.aio.client.exceptions import ApiException

from hollow.cluster import HollowCluster
from machinery.backoff import Backoff
from machinery.errors import NotFoundError
from machinery.kube.client import KubeClient, Object, Resource
from machinery.kube.reflector import ObjectKey, Reflector, mirrored
from tests.trials import repeated

Kubectl = Callable[..., Awaitable[str]]


@pytest.fixture
async def kubectl(hollow_cluster: HollowCluster, tmp_path: Path) -> Kubectl:
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(hollow_cluster.kubeconfig()))

    async def run(*arguments: str, stdin: str = "", fails: bool = False) -> str:
        command = ("kubectl", "--kubeconfig", str(file), "--cache-dir", str(tmp_path / "cache"), *arguments)
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        out, err = await process.communicate(stdin.encode())
        assert (process.returncode != 0) is fails, err.decode()
        return err.decode() if fails else out.decode()

    return run


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.kubectl
async def test_kubectl_shows_and_changes_nodes(kubectl: Kubectl, hollow_cluster: HollowCluster, tmp_path: Path) -> None:
    rows = table(await kubectl("get", "nodes"))
    assert rows[0] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert rows[1][:3] == ["test-node-0", "Ready", "control-plane"]
    assert rows[2][:3] == ["test-node-1", "Ready", "<none>"]
    assert rows[2][4] == "v1.34.2"
    wide = await kubectl("get", "nodes", "-o", "wide")
    assert "CONTAINER-RUNTIME" in wide
    assert "172.18.0.2" in wide
    assert json.loads(await kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"] == "v1.34.2"
    names = (await kubectl("api-resources", "-o", "name")).split()
    for name in ("nodes", "secrets", "leases.coordination.k8s.io", "clusterclaims.cluster.open-cluster-management.io"):
        assert name in names

    assert "test-node-1 cordoned" in await kubectl("cordon", "test-node-1")
    assert "Ready,SchedulingDisabled" in await kubectl("get", "node", "test-node-1")
    await kubectl("label", "node", "test-node-1", "disk=fast")
    assert table(await kubectl("get", "no", "-l", "disk=fast", "--no-headers"))[0][0] == "test-node-1"
    described = await kubectl("describe", "node", "test-node-1")
    assert "KubeletReady" in described
    assert "cpu:                8" in described

    ours = ("--kubeconfig", str(tmp_path / "kubeconfig"), "--cache-dir", str(tmp_path / "cache"))
    process = await asyncio.create_subprocess_exec("kubectl", *ours, "get", "nodes", "-w", "--no-headers", stdout=PIPE)
    assert process.stdout
    try:
        for _ in range(hollow_cluster.shape.nodes):
            assert b"Ready" in await process.stdout.readline()
        await kubectl("cordon", "test-node-2")
        assert b"SchedulingDisabled" in await process.stdout.readline()
    finally:
        process.kill()
        await process.wait()


@pytest.mark.kubectl
async def test_kubectl_writes_claims_secrets_and_namespaces(kubectl: Kubectl) -> None:
    kind = {"apiVersion": "cluster.open-cluster-management.io/v1alpha1", "kind": "ClusterClaim"}
    claim: dict[str, Any] = {**kind, "metadata": {"name": "region.example"}, "spec": {"value": "north"}}
    assert "created" in await kubectl("apply", "-f", "-", stdin=json.dumps(claim))
    assert "unchanged" in await kubectl("apply", "-f", "-", stdin=json.dumps(claim))
    claim["spec"] = {"value": "south"}
    assert "configured" in await kubectl("apply", "-f", "-", stdin=json.dumps(claim))
    assert await kubectl("get", "clusterclaim", "region.example", "-o", "jsonpath={.spec.value}") == "south"
    assert "deleted" in await kubectl("delete", "clusterclaims", "region.example")
    assert "NotFound" in await kubectl("get", "clusterclaim", "region.example", fails=True)

    await kubectl("create", "secret", "generic", "s", "--from-literal=a=1", "--from-literal=b=2")
    rows = table(await kubectl("get", "secrets"))
    assert rows[0] == ["NAME", "TYPE", "DATA", "AGE"]
    assert rows[1][:3] == ["s", "Opaque", "2"]
    await kubectl("patch", "secret", "s", "-p", '{"stringData": {"c": "3"}}')
    assert await kubectl("get", "secret", "s", "-o", "jsonpath={.data.c}") == "Mw=="
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "plain"}, "stringData": {"k": "v"}}
    await kubectl("create", "-f", "-", stdin=json.dumps(secret))
    stored = json.loads(await kubectl("get", "secret", "plain", "-o", "json"))
    assert stored["data"] == {"k": "dg=="}
    assert "stringData" not in stored

    await kubectl("create", "namespace", "team-a")
    assert table(await kubectl("get", "ns", "team-a", "--no-headers"))[0][:2] == ["team-a", "Active"]
    await kubectl("-n", "team-a", "create", "configmap", "c", "--from-literal=a=1")
    await kubectl("delete", "namespace", "team-a")
    await kubectl("create", "namespace", "team-a")
    assert await kubectl("-n", "team-a", "get", "configmaps", "-o", "name") == ""
    assert "not found" in await kubectl("-n", "nowhere", "create", "configmap", "c", fails=True)


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


async def test_typed_client_reads_and_writes_objects(api: Any) -> None:
    nodes = await kubernetes_client.CoreV1Api(api).list_node()
    assert [node.metadata.name for node in nodes.items] == ["test-node-0", "test-node-1", "test-node-2"]
    assert nodes.items[0].status.capacity["cpu"] == "8"
    assert nodes.items[0].status.node_info.kubelet_version == "v1.34.2"
    claims = await kubernetes_client.CustomObjectsApi(api).list_cluster_custom_object(**CLAIMS)
    assert "id.k8s.io" in {claim["metadata"]["name"] for claim in claims["items"]}
    assert (await kubernetes_client.VersionApi(api).get_code()).git_version == "v1.34.2"

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

    leases = kubernetes_client.CoordinationV1Api(api)
    body = {
        "metadata": {"name": "beat"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 60, "renewTime": "2026-11-21T08:00:00.123456Z"},
    }
    await leases.create_namespaced_lease("default", body)
    read = await leases.read_namespaced_lease("beat", "default")
    assert read.spec.renew_time.microsecond == 123456

    core = kubernetes_client.CoreV1Api(api)
    await core.create_namespaced_config_map("default", config_map("twice"))
    with pytest.raises(ApiException) as refused:
        await core.create_namespaced_config_map("default", config_map("twice"))
    assert refused.value.status == 409
    assert '"reason":"AlreadyExists"' in str(refused.value.body).replace(" ", "")
    core = kubernetes_client.CoreV1Api(api)
    stale = await core.create_namespaced_config_map("default", config_map("raced"))
    await core.patch_namespaced_config_map("raced", "default", {"data": {"a": "2"}})
    stale.data["a"] = "3"
    with pytest.raises(ApiException) as refused:
        await core.replace_namespaced_config_map("raced", "default", stale)
    assert refused.value.status == 409
    assert '"reason":"Conflict"' in str(refused.value.body).replace(" ", "")


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


async def test_watch_reports_every_change_and_410_for_a_forgotten_revision(api: Any, hollow_cluster: HollowCluster) -> None:
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
    await following
    assert seen == [("ADDED", "watched"), ("MODIFIED", "watched"), ("DELETED", "watched")]

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


MAPS = Resource("", "v1", "configmaps")
QUICK = timedelta(milliseconds=20)


@pytest.fixture
async def client(hollow_cluster: HollowCluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as connected:
        yield connected


def value_of(item: Object) -> str:
    return str(item["data"]["value"])


async def change(client: KubeClient, name: str, value: int, random: Random) -> None:
    """Makes, changes or deletes the config map."""
    path = MAPS.path(name, namespace="default")
    try:
        if random.random() < 0.3:
            await client.delete(path)
        else:
            await client.patch(path, {"data": {"value": str(value)}})
    except NotFoundError:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": str(value)}}
        await client.create(MAPS.path(namespace="default"), body)


@repeated(3, 40)
async def test_after_any_history_the_mirror_holds_what_the_cluster_holds(
    hollow_cluster: HollowCluster, client: KubeClient, trial: int
) -> None:
    random = Random(trial)
    told: dict[ObjectKey, Any] = {}
    settled = asyncio.Event()

    def take(key: ObjectKey, value: str | None) -> None:
        assert told.get(key) != value
        told[key] = value
        if key.name == "last":
            settled.set()

    maps, quick = MAPS.path(namespace="default"), Backoff(QUICK, QUICK)
    reflector: Reflector[str] = Reflector(
        client, maps, value_of, on_change=take, on_failure=lambda _error: None, page_size=4, backoff=quick
    )
    async with mirrored(reflector) as wait:
        await wait(reflector.synced)
        for step in range(120):
            await change(client, f"map-{random.randrange(12)}", step, random)
            match random.randrange(20):
                case 0:
                    hollow_cluster.cut_watches()
                case 1:
                    await hollow_cluster.forget_history()
                    hollow_cluster.cut_watches()
                case 2:
                    await hollow_cluster.stop()
                    await hollow_cluster.start()
        await change(client, "last", 0, random)
        await wait(settled)
    present = {item["metadata"]["name"]: value_of(item) for item in await client.list(MAPS.path(namespace="default"))}
    assert {key.name: value for key, value in reflector.items.items()} == present
    assert {key.name: value for key, value in told.items() if value is not None} == present
