"""The hub's account in a hollow cluster, with the chart installed by Helm: its rights are those that the code uses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import helm_python
import pytest
import yaml

from hollow.cluster import HollowCluster
from hollow.objects import Shape
from hub.management import ClusterKeySecret, ManagementCluster
from machinery.clock import SystemClock
from machinery.election.lock import Candidate
from machinery.kube.client import KubeClient, Resource
from machinery.kube.leaselock import LEASES, LeaseLock
from machinery.kube.ownership import owner_of
from tests.charts.rendering import BARE, CHARTS, VALUES, environment, plain, render
from tests.charts.rights import Calls, rights_of

NAMESPACE, ACCOUNT = "fleet", "muster-muster-hub"
PODS, SETS = Resource("", "v1", "pods"), Resource("apps", "v1", "statefulsets")
POD = f"{ACCOUNT}-0"
Live = Callable[[KubeClient, dict[str, str]], Awaitable[None]]


@asynccontextmanager
async def hosted(values: dict[str, Any], calls: Calls) -> AsyncIterator[KubeClient]:
    """A client as the account of the chart, which is installed; the pod of the first replica is there."""
    calls.of(NAMESPACE, ACCOUNT)
    async with HollowCluster(Shape("host"), tell=calls.tell) as cluster:
        kubeconfig = cluster.kubeconfig()

        def install() -> None:
            with helm_python.Config(kubeconfig_content=yaml.safe_dump(kubeconfig), namespace=NAMESPACE) as helm:
                helm.install(str(CHARTS / "hub"), "muster", values, namespace=NAMESPACE, create_namespace=True)

        await asyncio.to_thread(install)
        async with await KubeClient.from_document(kubeconfig) as admin:
            found = await admin.get(SETS.path(ACCOUNT, namespace=NAMESPACE))
            owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": ACCOUNT, "uid": found["metadata"]["uid"]}
            metadata = {"name": POD, "ownerReferences": [{**owner, "controller": True}]}
            await admin.create(PODS.path(namespace=NAMESPACE), {"metadata": metadata, "spec": {"containers": []}})
            path = Resource("", "v1", "serviceaccounts").path(ACCOUNT, namespace=NAMESPACE, subresource="token")
            asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            kubeconfig["users"][0]["user"] = {"token": (await admin.create(path, asked))["status"]["token"]}
        async with await KubeClient.from_document(kubeconfig) as account:
            yield account


async def keep_the_admin_kubeconfig(client: KubeClient, told: dict[str, str]) -> None:
    namespace, _, name = told["HUB_ADMIN_KUBECONFIG_SECRET"].partition("/")
    secret = ClusterKeySecret(client, namespace, name, pod=POD)
    await secret.read()
    await secret.write({"kubeconfig": b"one"})


async def keep_the_keys_of_its_cas(client: KubeClient, told: dict[str, str]) -> None:
    namespace, _, name = told["HUB_CA_KEY_SECRET"].partition("/")
    secret = ClusterKeySecret(client, namespace, name, pod=POD)
    await secret.write({"ca.key": b"one"})
    await secret.write({"ca.key": b"another"})


async def hold_the_lease(client: KubeClient, told: dict[str, str]) -> None:
    name, owner = told["HUB_LEADER_ELECT_RESOURCE_NAME"], partial(owner_of, client, NAMESPACE, POD)
    lock = LeaseLock(client, NAMESPACE, name, clock=SystemClock(), owner=owner)
    taken = await lock.take(None, Candidate(POD, "first"), timedelta(seconds=15))
    metadata = (await client.get(LEASES.path(name, namespace=NAMESPACE)))["metadata"]
    assert [(each["kind"], each["name"]) for each in metadata["ownerReferences"]] == [("StatefulSet", ACCOUNT)]
    await lock.renew(taken)
    await lock.read()


async def keep_the_bundle(client: KubeClient, told: dict[str, str]) -> None:
    namespace, _, name = told["HUB_AGGREGATION_SERVICE"].partition("/")
    await ManagementCluster(client, (namespace, name)).keep_bundle(b"CA")


CASES: dict[str, tuple[dict[str, Any], Live]] = {
    "adminKubeconfig": (VALUES["hub"], keep_the_admin_kubeconfig),
    "ca.keyPlace": (BARE | {"ca": {"keyPlace": "secret"}}, keep_the_keys_of_its_cas),
    "election.lock": (BARE | {"election": {"lock": "kubernetes"}}, hold_the_lease),
    "aggregation": (BARE | {"aggregation": {"enabled": True}}, keep_the_bundle),
}


@pytest.mark.parametrize("name", CASES)
async def test_every_call_has_its_right_and_every_right_its_call(name: str) -> None:
    values, live = CASES[name]
    documents, calls = render("hub", values), Calls()
    async with hosted(values, calls) as account:
        await live(account, plain(environment(documents)))
    assert list(calls.refused) == []
    assert [str(right) for right in calls.idle(rights_of(documents, NAMESPACE))] == []
    assert calls.allowed
