"""The `kubernetes` package as other programs use it: typed, dynamic, threads, asyncio; against a hub and a hollow cluster."""

import asyncio
import functools
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml
from kubernetes import aio
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError
from kubernetes.informer import informer as sync_informer

from hollow.cluster import HollowCluster
from hollow.objects import Shape
from tests.integration.door.conftest import HubUnderTest

# Every field of the typed models is optional: as Any the tests can say what they expect.
sync_client: Any = kubernetes.client
sync_dynamic: Any = kubernetes.dynamic
sync_watch: Any = kubernetes.watch
SharedInformer: Any = sync_informer.SharedInformer
aio_config: Any = aio.config
aio_client: Any = aio.client
aio_dynamic: Any = aio.dynamic
aio_watch: Any = aio.watch
NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Server:
    """A kubeconfig, and a cluster-scoped custom resource that the server has."""

    kubeconfig: dict[str, Any]
    api_version: str
    kind: str
    spec: dict[str, Any]

    def document(self, name: str) -> dict[str, Any]:
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": {"name": name}, "spec": self.spec}


@pytest.fixture(scope="module", params=["hub", "hollow"])
async def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    group = "cluster.open-cluster-management.io"
    if request.param == "hollow":
        async with HollowCluster(Shape("test")) as cluster:
            yield Server(cluster.kubeconfig(), f"{group}/v1alpha1", "ClusterClaim", {"value": "x"})
        return
    hub = HubUnderTest(tmp_path_factory.mktemp("hub"))
    await hub.start()
    yield Server(_loaded(await hub.admin()), f"{group}/v1", "ManagedCluster", {"hubAcceptsClient": False})
    await hub.stop()


def _loaded(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_bytes())
    return content


def on_a_thread(test: Callable[..., None]) -> Callable[..., Coroutine[Any, Any, None]]:
    """Runs a test of the blocking client beside the server's event loop."""

    @functools.wraps(test)
    async def run(*arguments: Any, **named: Any) -> None:
        await asyncio.to_thread(test, *arguments, **named)

    return run


def connected(server: Server) -> Any:
    new_client: Any = kubernetes.config.new_client_from_config_dict
    return new_client(server.kubeconfig)


def config_map(name: str, **data: str) -> Any:
    return sync_client.V1ConfigMap(metadata=sync_client.V1ObjectMeta(name=name, labels={"of": name}), data=data)


@on_a_thread
def test_typed_objects_live_from_create_to_delete(server: Server) -> None:
    with connected(server) as api:
        core = sync_client.CoreV1Api(api)
        created = core.create_namespaced_config_map(NAMESPACE, config_map("typed", a="1"))
        created.data["a"] = "2"
        replaced = core.replace_namespaced_config_map("typed", NAMESPACE, created)
        patched = core.patch_namespaced_config_map("typed", NAMESPACE, {"data": {"b": "3"}})
        listed = core.list_namespaced_config_map(NAMESPACE, label_selector="of=typed")
        with pytest.raises(sync_client.ApiException) as refused:
            core.replace_namespaced_config_map("typed", NAMESPACE, created)
        deleted = core.delete_namespaced_config_map("typed", NAMESPACE)

    assert (replaced.data, patched.data) == ({"a": "2"}, {"a": "2", "b": "3"})
    assert [item.metadata.name for item in listed.items] == ["typed"]
    assert (refused.value.status, deleted["status"]) == (409, "Success")


@on_a_thread
def test_dynamic_objects_are_found_by_discovery(server: Server) -> None:
    with connected(server) as api:
        client = sync_dynamic.DynamicClient(api, cache_file=None)
        resource = client.resources.get(api_version=server.api_version, kind=server.kind)
        made = resource.create(body=server.document("dynamic"))
        merged = {"metadata": {"name": "dynamic", "labels": {"tier": "gold"}}}
        patched = resource.patch(body=merged, content_type="application/merge-patch+json")
        chosen = resource.get(label_selector="tier=gold")
        with pytest.raises(ConflictError):
            resource.create(body=server.document("dynamic"))
        resource.delete(name="dynamic")
        with pytest.raises(NotFoundError):
            resource.get(name="dynamic")

    assert (made.kind, patched.metadata.labels.tier) == (server.kind, "gold")
    assert [item.metadata.name for item in chosen.items] == ["dynamic"]


@on_a_thread
def test_dynamic_objects_are_applied_on_the_server(server: Server) -> None:
    with connected(server) as api:
        resource = sync_dynamic.DynamicClient(api).resources.get(api_version="v1", kind="ConfigMap")
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "1"}}
        resource.server_side_apply(body=body, namespace=NAMESPACE, field_manager="one")
        with pytest.raises(ConflictError):
            resource.server_side_apply(body={**body, "data": {"a": "2"}}, namespace=NAMESPACE, field_manager="two")
        taken = resource.server_side_apply(
            body={**body, "data": {"a": "2"}}, namespace=NAMESPACE, field_manager="two", force_conflicts=True
        )
        resource.delete(name="applied", namespace=NAMESPACE)

    assert taken.data.a == "2"


@on_a_thread
def test_a_watch_of_threads_tells_changes_in_order(server: Server) -> None:
    with connected(server) as api:
        core = sync_client.CoreV1Api(api)
        core.create_namespaced_config_map(NAMESPACE, config_map("watched"))
        core.patch_namespaced_config_map("watched", NAMESPACE, {"data": {"a": "1"}})
        since = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
        core.patch_namespaced_config_map("watched", NAMESPACE, {"data": {"a": "2"}})
        core.delete_namespaced_config_map("watched", NAMESPACE)
        watch = sync_watch.Watch()
        told = []
        for event in watch.stream(
            core.list_namespaced_config_map,
            NAMESPACE,
            resource_version=since,
            timeout_seconds=10,
            field_selector="metadata.name=watched",
        ):
            told.append((event["type"], (event["object"].data or {}).get("a")))
            if event["type"] == "DELETED":
                watch.stop()

    assert told == [("MODIFIED", "2"), ("DELETED", "2")]


@on_a_thread
def test_an_informer_keeps_a_copy(server: Server) -> None:
    seen: deque[str] = deque()
    moved = threading.Event()

    def note(kind: str) -> Callable[[Any], None]:
        def noted(item: Any) -> None:
            if item.metadata.name.startswith("informed"):
                seen.append(f"{kind} {item.metadata.name}")
                moved.set()

        return noted

    def until(count: int) -> None:
        while len(seen) < count:
            assert moved.wait(15), seen
            moved.clear()

    with connected(server) as api, connected(server) as watching:
        core = sync_client.CoreV1Api(api)
        core.create_namespaced_config_map(NAMESPACE, config_map("informed-a"))
        informer = SharedInformer(sync_client.CoreV1Api(watching).list_namespaced_config_map, namespace=NAMESPACE)
        for kind in ("ADDED", "MODIFIED", "DELETED"):
            informer.add_event_handler(kind, note(kind))
        informer.start()
        until(1)
        core.create_namespaced_config_map(NAMESPACE, config_map("informed-b"))
        until(2)
        core.patch_namespaced_config_map("informed-b", NAMESPACE, {"data": {"a": "1"}})
        until(3)
        core.delete_namespaced_config_map("informed-a", NAMESPACE)
        until(4)
        kept = {item.metadata.name for item in informer.cache.list() if item.metadata.name.startswith("informed")}
        informer._stop_event.set()  # its stop() would wait for the next event, which then comes
        core.delete_namespaced_config_map("informed-b", NAMESPACE)
        informer.stop()

    assert list(seen)[:4] == ["ADDED informed-a", "ADDED informed-b", "MODIFIED informed-b", "DELETED informed-a"]
    assert kept == {"informed-b"}


async def test_the_asyncio_client_is_typed_too(server: Server) -> None:
    async with await aio_config.new_client_from_config_dict(server.kubeconfig) as api:
        leases = aio_client.CoordinationV1Api(api)
        moment = "2026-11-21T08:00:00.123456Z"
        body = {"metadata": {"name": "beat"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 60, "renewTime": moment}}
        made = await leases.create_namespaced_lease(NAMESPACE, body)
        read = await leases.read_namespaced_lease("beat", NAMESPACE)
        deleted = await leases.delete_namespaced_lease("beat", NAMESPACE)

    assert made.metadata.uid == read.metadata.uid
    assert read.spec.renew_time.microsecond == 123456
    assert deleted["status"] == "Success"


async def test_the_asyncio_client_is_dynamic_too(server: Server) -> None:
    async with await aio_config.new_client_from_config_dict(server.kubeconfig) as api:
        client = await aio_dynamic.DynamicClient(api)
        resource = await client.resources.get(api_version=server.api_version, kind=server.kind)
        since = (await resource.get()).metadata.resourceVersion
        made = await resource.create(body=server.document("async-dynamic"))
        told = []
        async for event in resource.watch(resource_version=since, timeout=2):  # to its end: the package closes it only then
            told.append((event["type"], event["object"].metadata.name))
            if event["type"] == "ADDED":
                await resource.delete(name="async-dynamic")

    assert made.metadata.name == "async-dynamic"
    assert (told[0], told[-1]) == (("ADDED", "async-dynamic"), ("DELETED", "async-dynamic"))


async def test_the_asyncio_watch_follows_from_a_list(server: Server) -> None:
    async with await aio_config.new_client_from_config_dict(server.kubeconfig) as api:
        core = aio_client.CoreV1Api(api)
        since = (await core.list_namespaced_config_map(NAMESPACE)).metadata.resource_version
        await core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "followed"}, "data": {"a": "1"}})
        await core.delete_namespaced_config_map("followed", NAMESPACE)
        told = []
        async with aio_watch.Watch().stream(
            core.list_namespaced_config_map, NAMESPACE, resource_version=since, timeout_seconds=10
        ) as events:
            async for event in events:
                told.append((event["type"], event["object"].metadata.name))
                if event["type"] == "DELETED":
                    break

    assert told == [("ADDED", "followed"), ("DELETED", "followed")]
