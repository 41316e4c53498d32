"""The hub's account in a hollow cluster, with the chart installed by Helm: its rights are those that the code uses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import helm_python
import pytest
import yaml

from hollow.cluster import HollowCluster
from hollow.objects import ClusterShape, manager_pod
from hub.extensions.aggregation.management import ManagementCluster
from hub.extensions.kube_cert_agent.cluster_client import DEPLOYMENTS, HostCluster, mirrors
from hub.extensions.kube_cert_agent.cluster_client import PODS as AGENT_PODS
from hub.extensions.kube_cert_agent.controller import KEY, KubeCertAgent, OutdatedPods
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape as AgentShape
from hub.extensions.kube_cert_agent.issuer import AuthorityProvider
from hub.replica.host_secrets import ClusterKeySecret
from machinery.client.leaselock import LEASES, LeaseLock
from machinery.client.ownership import owner_of
from machinery.client.rest import KubeClient, RestResource
from machinery.election.lock import Candidate
from machinery.runtime.clock import SystemClock
from tests.charts.rendering import BARE, CHARTS, VALUES, environment, render
from tests.charts.rights import Calls, rights_of
from tests.fakes.host_cluster import BookInMemory

NAMESPACE, ACCOUNT = "fleet", "muster-muster-hub"
PODS, SETS = RestResource("", "v1", "pods"), RestResource("apps", "v1", "statefulsets")
POD = f"{ACCOUNT}-0"
Live = Callable[[KubeClient, KubeClient, dict[str, str]], Awaitable[None]]
"""Makes each call of one part of the hub, with the clients of its account and of an administrator and its environment."""


@asynccontextmanager
async def hosted(values: dict[str, Any], calls: Calls) -> AsyncIterator[tuple[KubeClient, KubeClient]]:
    """Clients of the installed chart's account and of an administrator; the pod of the first replica is there."""
    calls.of(NAMESPACE, ACCOUNT)
    async with HollowCluster(ClusterShape("host"), on_decision=calls.tell) as cluster:
        kubeconfig = cluster.kubeconfig()

        def install() -> None:
            content = yaml.safe_dump(kubeconfig)
            with helm_python.Config(kubeconfig_content=content, namespace=NAMESPACE, qps=1000, burst_limit=1000) as helm:
                helm.install(str(CHARTS / "hub"), "muster", values, namespace=NAMESPACE, create_namespace=True)

        await asyncio.to_thread(install)
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(await KubeClient.from_document(kubeconfig))
            found = await admin.get(SETS.path(ACCOUNT, namespace=NAMESPACE))
            owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": ACCOUNT, "uid": found["metadata"]["uid"]}
            metadata = {"name": POD, "ownerReferences": [{**owner, "controller": True}]}
            await admin.create(PODS.path(namespace=NAMESPACE), {"metadata": metadata, "spec": {"containers": []}})
            path = RestResource("", "v1", "serviceaccounts").path(ACCOUNT, namespace=NAMESPACE, subresource="token")
            asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            kubeconfig["users"][0]["user"] = {"token": (await admin.create(path, asked))["status"]["token"]}
            account = await stack.enter_async_context(await KubeClient.from_document(kubeconfig))
            yield account, admin


async def keep_the_admin_kubeconfig(client: KubeClient, _admin: KubeClient, told: dict[str, str]) -> None:
    namespace, _, name = told["HUB_ADMIN_KUBECONFIG_SECRET"].partition("/")
    secret = ClusterKeySecret(client, namespace, name, pod=POD)
    await secret.read()
    await secret.write({"kubeconfig": b"one"})


async def keep_the_keys_of_its_cas(client: KubeClient, _admin: KubeClient, told: dict[str, str]) -> None:
    namespace, _, name = told["HUB_CA_KEY_SECRET"].partition("/")
    secret = ClusterKeySecret(client, namespace, name, pod=POD)
    await secret.write({"ca.key": b"one"})
    await secret.write({"ca.key": b"another"})


async def hold_the_lease(client: KubeClient, _admin: KubeClient, told: dict[str, str]) -> None:
    name, owner = told["HUB_LEADER_ELECT_RESOURCE_NAME"], partial(owner_of, client, NAMESPACE, POD)
    lock = LeaseLock(client, NAMESPACE, name, clock=SystemClock(), owner=owner)
    taken = await lock.take(None, Candidate(POD, "first"), timedelta(seconds=15))
    metadata = (await client.get(LEASES.path(name, namespace=NAMESPACE)))["metadata"]
    assert [(each["kind"], each["name"]) for each in metadata["ownerReferences"]] == [("StatefulSet", ACCOUNT)]
    await lock.renew(taken)
    await lock.read()


async def keep_the_bundle(client: KubeClient, _admin: KubeClient, told: dict[str, str]) -> None:
    namespace, _, name = told["HUB_AGGREGATION_SERVICE"].partition("/")
    await ManagementCluster(client, (namespace, name)).keep_bundle(b"CA")


async def run_the_cert_agent(client: KubeClient, admin: KubeClient, told: dict[str, str]) -> None:
    labels = dict(each.split("=") for each in told["HUB_KUBE_CERT_AGENT_LABELS"].split(","))
    name, image = told["HUB_KUBE_CERT_AGENT_NAME"], told["HUB_KUBE_CERT_AGENT_IMAGE"]
    shape = AgentShape(NAMESPACE, name, image, told["HUB_KUBE_CERT_AGENT_SERVICE_ACCOUNT"], labels)
    second = manager_pod(ClusterShape("host"))
    second["metadata"]["name"] += "-second"
    await admin.create(AGENT_PODS.path(namespace="kube-system"), second)  # so that nodes are looked at
    # in a hollow cluster administrators alone may exec
    client.websocket = admin.websocket  # type: ignore[method-assign]
    host, book = HostCluster(client, shape, POD), BookInMemory()
    agent = KubeCertAgent(host, shape, AuthorityProvider(), book, clock=SystemClock())
    await agent.reconcile(KEY)  # makes the Deployment
    path = DEPLOYMENTS.path(name, namespace=NAMESPACE)
    owners = (await admin.get(path))["metadata"]["ownerReferences"]
    assert [(each["kind"], each["name"]) for each in owners] == [("StatefulSet", ACCOUNT)]
    again = KubeCertAgent(host, replace(shape, image="other"), AuthorityProvider(), book, clock=SystemClock())
    await again.reconcile(KEY)  # updates it
    [(label, _)] = shape.selector.items()
    old = await admin.get(path)
    await admin.delete(path)
    old["spec"]["selector"]["matchLabels"] = old["spec"]["template"]["metadata"]["labels"] = {label: "v0", **shape.labels}
    await admin.create(DEPLOYMENTS.path(namespace=NAMESPACE), {**old, "metadata": {"name": name}})
    [outdated] = await admin.list(AGENT_PODS.path(namespace=NAMESPACE), {"labelSelector": f"{label}=v0"})
    await OutdatedPods(host, shape, book.leads).reconcile(outdated["metadata"]["name"])
    await agent.reconcile(KEY)  # makes it anew
    async with AsyncExitStack() as stack:
        for mirror in mirrors(client, shape, lambda: None, lambda _name: None).values():
            await mirror._list()
            query = {**mirror._query, "resourceVersion": mirror._revision or ""}
            await stack.enter_async_context(client.watch(mirror.path, query, within=timedelta(seconds=20)))


IDLE = {"kubernetesCA": ["get pods/exec", "create pods/exec"]}
"""Not seen here: exec is a get before Kubernetes 1.35, and a create from then on."""
CASES: dict[str, tuple[dict[str, Any], Live]] = {
    "adminKubeconfig": (VALUES["hub"], keep_the_admin_kubeconfig),
    "ca.keyPlace": (BARE | {"ca": {"keyPlace": "secret"}}, keep_the_keys_of_its_cas),
    "election.lock": (BARE | {"election": {"lock": "kubernetes"}}, hold_the_lease),
    "kubernetesCA": (BARE | {"kubernetesCA": {"enabled": True}}, run_the_cert_agent),
    "aggregation": (BARE | {"aggregation": {"enabled": True}}, keep_the_bundle),
}


@pytest.mark.parametrize("name", CASES)
async def test_every_call_has_its_right_and_every_right_its_call(name: str) -> None:
    values, live = CASES[name]
    documents, calls = render("hub", values), Calls()
    async with hosted(values, calls) as (account, admin):
        await live(account, admin, environment(documents))
    assert list(calls.refused) == []
    idle = [f"{right.verb} {right.resource}" for right in calls.idle(rights_of(documents, NAMESPACE))]
    assert idle == IDLE.get(name, [])
    assert calls.allowed
