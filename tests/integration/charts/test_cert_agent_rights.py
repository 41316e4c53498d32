"""The rights that the chart gives for the Kubernetes CA are those that the code uses: none is missing, and none is idle."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from hollow.cluster import HollowCluster
from hollow.controlplane import manager_pod
from hollow.objects import Shape as HollowShape
from hub.issuer import AuthorityProvider
from hub.kubecert.cleaner import OutdatedPods
from hub.kubecert.controller import KEY, KubeCertAgent
from hub.kubecert.deployment import Shape
from hub.kubecert.surroundings import DEPLOYMENTS, PODS, HostCluster
from hub.kubecert.watching import mirrors
from machinery.apiserver.paths import attributes
from machinery.clock import SystemClock
from machinery.kube.client import KubeClient, Resource
from tests.charts.rendering import BARE, environment, pod_spec, render
from tests.fakes.host_cluster import BookInMemory

NAMESPACE, HUB = "fleet", "muster-muster-hub"
POD = f"{HUB}-0"
STATEFUL_SETS = Resource("apps", "v1", "statefulsets")
ON: dict[str, Any] = {**BARE, "kubernetesCA": {"enabled": True}}
BY_METHOD = {"POST": "create", "PUT": "update", "DELETE": "delete", "PATCH": "patch"}


@dataclass(frozen=True)
class Call:
    """What RBAC is asked. `name` is known of lists too, where a field selector names it."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str


class Listening(KubeClient):
    """Notes what it asks."""

    calls: set[Call]

    def note(self, method: str, path: str, query: Iterable[tuple[str, Any]]) -> None:
        asked = attributes(method, path, {name: str(value) for name, value in query})
        resource = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
        selected = dict(query).get("fieldSelector", "").removeprefix("metadata.name=")
        named = asked.name or selected
        self.calls.add(Call(asked.verb, asked.group, resource, asked.namespace, named))

    async def _send(self, method: str, path: str, query: Any, **how: Any) -> Any:
        self.note(method, path, list((query or {}).items()))
        return await super()._send(method, path, query, **how)

    def websocket(self, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]) -> Any:
        self.note("GET", path, [])
        return super().websocket(path, query, protocols)


@dataclass(frozen=True)
class Right:
    """One verb on one resource, in one namespace ("": in all)."""

    verb: str
    group: str
    resource: str
    namespace: str
    names: tuple[str, ...]

    def allows(self, call: Call) -> bool:
        same = (self.verb, self.group, self.resource) == (call.verb, call.group, call.resource)
        return same and self.namespace in ("", call.namespace) and (not self.names or call.name in self.names)


def rights_of(documents: list[dict[str, Any]]) -> list[Right]:
    """Of the hub's account, by way of its bindings."""
    roles = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in documents}
    account = pod_spec(documents)["serviceAccountName"]
    found = []
    for binding in documents:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        assert [(each["name"], each["namespace"]) for each in binding["subjects"]] == [(account, NAMESPACE)]
        namespace = binding["metadata"].get("namespace", "")
        role = roles[binding["roleRef"]["kind"], namespace, binding["roleRef"]["name"]]
        for rule in role["rules"]:
            names = tuple(rule.get("resourceNames", ()))
            found += [
                Right(verb, group, resource, namespace, names)
                for verb in rule["verbs"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
            ]
    return found


@pytest.fixture
async def cluster() -> AsyncIterator[HollowCluster]:
    async with HollowCluster(HollowShape("host")) as served:
        yield served


async def live(client: Listening, stage: KubeClient, shape: Shape) -> None:
    """Everything that the cert agent's controllers ever do. `stage`: by which others do something, which is not noted."""
    host, book = HostCluster(client, shape, POD), BookInMemory()
    agent = KubeCertAgent(host, shape, AuthorityProvider(), book, clock=SystemClock())
    await agent.reconcile(KEY)  # makes the Deployment
    metadata = (await stage.get(DEPLOYMENTS.path(shape.name, namespace=shape.namespace)))["metadata"]
    assert [(each["kind"], each["name"]) for each in metadata["ownerReferences"]] == [("StatefulSet", HUB)]
    again = KubeCertAgent(host, replace(shape, image="other"), AuthorityProvider(), book, clock=SystemClock())
    await again.reconcile(KEY)  # updates it
    path = DEPLOYMENTS.path(shape.name, namespace=shape.namespace)
    [(label, _)] = shape.selector.items()
    old = await stage.get(path)
    await stage.delete(path)
    old["spec"]["selector"]["matchLabels"] = old["spec"]["template"]["metadata"]["labels"] = {label: "v0", **shape.labels}
    await stage.create(DEPLOYMENTS.path(namespace=shape.namespace), {**old, "metadata": {"name": shape.name}})
    [outdated] = await stage.list(PODS.path(namespace=shape.namespace), {"labelSelector": f"{label}=v0"})
    await OutdatedPods(host, shape, book.leads).reconcile(outdated["metadata"]["name"])
    await agent.reconcile(KEY)  # makes it anew
    async with AsyncExitStack() as stack:
        for mirror in mirrors(client, shape, lambda: None, lambda _name: None):
            await mirror._list()
            query = {**mirror._query, "resourceVersion": mirror._revision or ""}
            await stack.enter_async_context(client.watch(mirror.path, query, within=timedelta(seconds=20)))


async def test_every_call_has_its_right_and_every_right_its_call(cluster: HollowCluster) -> None:
    documents = render("hub", ON)
    told = environment(documents)
    labels = dict(each.split("=") for each in told["HUB_KUBE_CERT_AGENT_LABELS"].split(","))
    name = told["HUB_KUBE_CERT_AGENT_NAME"]
    shape = Shape(NAMESPACE, name, told["HUB_KUBE_CERT_AGENT_IMAGE"], told["HUB_KUBE_CERT_AGENT_SERVICE_ACCOUNT"], labels)
    second = manager_pod(cluster.shape)
    second["metadata"]["name"] += "-second"
    async with (
        await KubeClient.from_document(cluster.kubeconfig()) as stage,
        await Listening.from_document(cluster.kubeconfig()) as client,
    ):
        client.calls = set()
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await stage.create("/api/v1/namespaces", namespace)
        await stage.create(PODS.path(namespace="kube-system"), second)  # so that nodes are looked at
        [hub] = [each for each in documents if each["kind"] == "StatefulSet"]
        found = await stage.create(STATEFUL_SETS.path(namespace=NAMESPACE), hub)
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": HUB, "uid": found["metadata"]["uid"]}
        metadata = {"name": POD, "ownerReferences": [{**owner, "controller": True}]}
        await stage.create(PODS.path(namespace=NAMESPACE), {"metadata": metadata, "spec": {"containers": []}})
        await live(client, stage, shape)

    rights = rights_of(documents)
    assert [call for call in client.calls if not any(right.allows(call) for right in rights)] == []
    idle = [right for right in rights if not any(right.allows(call) for call in client.calls)]
    # from Kubernetes 1.35 on the same call is a create
    assert [(each.verb, each.resource) for each in idle] == [("create", "pods/exec")]


def test_nothing_of_it_is_rendered_where_it_is_off() -> None:
    documents = render("hub", BARE)
    assert not [each["kind"] for each in documents if "Role" in each["kind"]]
    assert len([each for each in documents if each["kind"] == "ServiceAccount"]) == 1
    assert not [name for name in environment(documents) if "KUBE" in name]
    [workload] = [each for each in documents if each["kind"] == "StatefulSet"]
    assert workload["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_the_hubs_service_and_set_do_not_take_the_agents_pod_for_a_hub() -> None:
    documents = render("hub", ON)
    labels = dict(each.split("=") for each in environment(documents)["HUB_KUBE_CERT_AGENT_LABELS"].split(","))
    pods = Shape(NAMESPACE, "agent", "i", "s", labels).pod_labels
    for document in documents:
        selector = document.get("spec", {}).get("selector", {})
        assert not selector or not selector.get("matchLabels", selector).items() <= pods.items(), document["kind"]


def test_a_group_that_kubernetes_gives_is_refused_by_the_chart_too() -> None:
    with pytest.raises(Exception, match="kubernetesCA"):
        render("hub", {**ON, "kubernetesCA": {"enabled": True, "groups": ["system:masters"]}})
