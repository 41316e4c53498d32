"""The `kubernetes` package as other programs use it: typed, dynamic, threads, asyncio; against a hub and a hollow cluster."""

import asyncio
import queue
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import kubernetes
import pytest
import yaml
from kubernetes import aio
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError
from kubernetes.informer import informer as sync_informer

from hollow.cluster import HollowCluster
from hollow.objects import ClusterShape
from tests.checks import check_refusal
from tests.integration.https_door.conftest import HubUnderTest

# Every field of the typed models is optional: as Any the tests can say what they expect.
blocking: Any = kubernetes
asynchronous: Any = aio
SharedInformer: Any = sync_informer.SharedInformer
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
        async with HollowCluster(ClusterShape("test")) as cluster:
            yield Server(cluster.kubeconfig(), f"{group}/v1alpha1", "ClusterClaim", {"value": "x"})
        return
    hub = HubUnderTest(tmp_path_factory.mktemp("hub"))
    await hub.start()
    yield Server(yaml.safe_load((await hub.admin()).read_bytes()), f"{group}/v1", "ManagedCluster", {"hubAcceptsClient": False})
    await hub.stop()


def connected(server: Server) -> Any:
    return blocking.config.new_client_from_config_dict(server.kubeconfig)


def config_map(name: str, **data: str) -> Any:
    return blocking.client.V1ConfigMap(metadata=blocking.client.V1ObjectMeta(name=name, labels={"of": name}), data=data)


async def test_the_blocking_client_is_typed_dynamic_and_has_watches_and_informers(server: Server) -> None:
    for check in (check_typed, check_watch, check_dynamic, check_apply, check_informer):
        await asyncio.to_thread(check, server)  # beside the server's event loop


def check_typed(server: Server) -> None:
    with connected(server) as api:
        core = blocking.client.CoreV1Api(api)
        created = core.create_namespaced_config_map(NAMESPACE, config_map("typed", a="1"))
        created.data["a"] = "2"
        replaced = core.replace_namespaced_config_map("typed", NAMESPACE, created)
        patched = core.patch_namespaced_config_map("typed", NAMESPACE, {"data": {"b": "3"}})
        listed = core.list_namespaced_config_map(NAMESPACE, label_selector="of=typed")
        with pytest.raises(blocking.client.ApiException) as refused:
            core.replace_namespaced_config_map("typed", NAMESPACE, created)
        deleted = core.delete_namespaced_config_map("typed", NAMESPACE)
    assert (replaced.data, patched.data) == ({"a": "2"}, {"a": "2", "b": "3"})
    assert [item.metadata.name for item in listed.items] == ["typed"]
    assert (refused.value.status, deleted["status"]) == (409, "Success")


def check_watch(server: Server) -> None:
    with connected(server) as api:
        core, watch = blocking.client.CoreV1Api(api), blocking.watch.Watch()
        core.create_namespaced_config_map(NAMESPACE, config_map("watched"))
        since = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
        core.patch_namespaced_config_map("watched", NAMESPACE, {"data": {"a": "2"}})
        core.delete_namespaced_config_map("watched", NAMESPACE)
        reported = []
        how = {"resource_version": since, "timeout_seconds": 10, "field_selector": "metadata.name=watched"}
        for event in watch.stream(core.list_namespaced_config_map, NAMESPACE, **how):
            reported.append((event["type"], event["object"].data["a"]))
            if event["type"] == "DELETED":
                watch.stop()
    assert reported == [("MODIFIED", "2"), ("DELETED", "2")]


def check_dynamic(server: Server) -> None:
    with connected(server) as api:
        client = blocking.dynamic.DynamicClient(api, cache_file=None)
        resource = client.resources.get(api_version=server.api_version, kind=server.kind)
        made = resource.create(body=server.document("dynamic"))
        merged = {"metadata": {"name": "dynamic", "labels": {"tier": "gold"}}}
        patched = resource.patch(body=merged, content_type="application/merge-patch+json")
        chosen = resource.get(label_selector="tier=gold")
        check_refusal(ConflictError, resource.create, body=server.document("dynamic"))
        resource.delete(name="dynamic")
        check_refusal(NotFoundError, resource.get, name="dynamic")
    assert (made.kind, patched.metadata.labels.tier) == (server.kind, "gold")
    assert [item.metadata.name for item in chosen.items] == ["dynamic"]


def check_apply(server: Server) -> None:
    with connected(server) as api:
        resource = blocking.dynamic.DynamicClient(api).resources.get(api_version="v1", kind="ConfigMap")
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "1"}}
        resource.server_side_apply(body=body, namespace=NAMESPACE, field_manager="one")
        other: dict[str, Any] = {"body": {**body, "data": {"a": "2"}}, "namespace": NAMESPACE, "field_manager": "two"}
        check_refusal(ConflictError, resource.server_side_apply, **other)
        taken = resource.server_side_apply(**other, force_conflicts=True)
        resource.delete(name="applied", namespace=NAMESPACE)
    assert taken.data.a == "2"


def check_informer(server: Server) -> None:
    seen: queue.Queue[str] = queue.Queue()

    def expect(*events: str) -> None:
        for event in events:
            assert seen.get(timeout=15) == event

    with connected(server) as api, connected(server) as watching:
        core = blocking.client.CoreV1Api(api)
        core.create_namespaced_config_map(NAMESPACE, config_map("informed-a"))
        informer = SharedInformer(blocking.client.CoreV1Api(watching).list_namespaced_config_map, namespace=NAMESPACE)
        for kind in ("ADDED", "MODIFIED", "DELETED"):

            def note(item: Any, kind: str = kind) -> None:
                if item.metadata.name.startswith("informed"):
                    seen.put(f"{kind} {item.metadata.name}")

            informer.add_event_handler(kind, note)
        informer.start()
        expect("ADDED informed-a")
        core.create_namespaced_config_map(NAMESPACE, config_map("informed-b"))
        expect("ADDED informed-b")
        core.patch_namespaced_config_map("informed-b", NAMESPACE, {"data": {"a": "1"}})
        core.delete_namespaced_config_map("informed-a", NAMESPACE)
        expect("MODIFIED informed-b", "DELETED informed-a")
        kept = {item.metadata.name for item in informer.cache.list() if item.metadata.name.startswith("informed")}
        informer._stop_event.set()  # its stop() would wait for the next event, which then comes
        core.delete_namespaced_config_map("informed-b", NAMESPACE)
        informer.stop()
    assert kept == {"informed-b"}


async def test_the_asyncio_client_is_typed_dynamic_and_has_watches(server: Server) -> None:
    async with await asynchronous.config.new_client_from_config_dict(server.kubeconfig) as api:
        leases, core = asynchronous.client.CoordinationV1Api(api), asynchronous.client.CoreV1Api(api)
        moment = "2026-11-21T08:00:00.123456Z"
        body = {"metadata": {"name": "beat"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 60, "renewTime": moment}}
        made = await leases.create_namespaced_lease(NAMESPACE, body)
        read = await leases.read_namespaced_lease("beat", NAMESPACE)
        assert (await leases.delete_namespaced_lease("beat", NAMESPACE))["status"] == "Success"
        assert (made.metadata.uid, read.spec.renew_time.microsecond) == (read.metadata.uid, 123456)

        since = (await core.list_namespaced_config_map(NAMESPACE)).metadata.resource_version
        await core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "followed"}, "data": {"a": "1"}})
        await core.delete_namespaced_config_map("followed", NAMESPACE)
        watched, how = [], {"resource_version": since, "timeout_seconds": 10}
        async with asynchronous.watch.Watch().stream(core.list_namespaced_config_map, NAMESPACE, **how) as events:
            async for event in events:
                watched.append((event["type"], event["object"].metadata.name))
                if event["type"] == "DELETED":
                    break
        assert watched == [("ADDED", "followed"), ("DELETED", "followed")]

        client = await asynchronous.dynamic.DynamicClient(api)
        resource = await client.resources.get(api_version=server.api_version, kind=server.kind)
        since, watched = (await resource.get()).metadata.resourceVersion, []
        await resource.create(body=server.document("async-dynamic"))
        async for event in resource.watch(resource_version=since, timeout=2):  # to its end: the package closes it only then
            watched.append((event["type"], event["object"].metadata.name))
            if event["type"] == "ADDED":
                await resource.delete(name="async-dynamic")
        assert (watched[0], watched[-1]) == (("ADDED", "async-dynamic"), ("DELETED", "async-dynamic"))
