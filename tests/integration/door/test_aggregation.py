"""The hub behind a kube-apiserver: its users come through the front proxy, with the rights that it gives them."""

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from hub.apiserver.aggregation import Aggregation
from hub.management import ManagementCluster
from machinery.clock import SystemClock
from machinery.kube.client import KubeClient
from machinery.kubeconfig import Credential
from machinery.tls import client_context
from tests.fakes.authority import OtherCA
from tests.fakes.management import AggregatingProxy, ManagementInMemory
from tests.integration.door.conftest import Ended, HubUnderTest
from tests.integration.door.test_access import CLUSTERS, Visitor, holder, nobody
from tests.integration.door.test_tokens import get

SERVICE = ("muster", "hub")


@dataclass
class Stage:
    """A hub, the cluster before it, and the way between them."""

    hub: HubUnderTest
    management: ManagementInMemory
    aggregation: Aggregation

    def proxy(self, ca: OtherCA | None = None, name: str = "front-proxy-client") -> Visitor:
        shown: Credential = (ca or self.management.proxy_ca).issue(name)
        return Visitor(self.hub, client_context(self.hub.issuer.trust_bundle, shown.chain, shown.key))

    async def ask(self, user: str, path: str = CLUSTERS, method: str = "GET", body: Any = None) -> tuple[int, Any]:
        return await self.proxy().ask(method, path, body, **{"X-Remote-User": user, "X-Remote-Group": "dev"})


@pytest.fixture
async def stage(hub: HubUnderTest) -> AsyncIterator[Stage]:
    async with (
        ManagementInMemory() as management,
        ManagementCluster(await KubeClient.from_document(management.kubeconfig), SERVICE) as connected,
    ):
        hub.make_ways_in = lambda serving: (Aggregation(connected, serving, SystemClock()),)
        await hub.restart()
        aggregation = hub.ways_in[0]
        assert isinstance(aggregation, Aggregation)
        await aggregation.look()
        yield Stage(hub, management, aggregation)
        await hub.stop()


async def test_users_of_the_cluster_have_the_rights_that_it_gives(stage: Stage) -> None:
    await stage.hub.join("edge1")
    status, answer = await stage.ask("ann")
    assert (status, [item["metadata"]["name"] for item in answer["items"]]) == (200, ["edge1"])
    status, answer = await stage.ask("bob")
    assert (status, 'User "bob" cannot list resource "managedclusters"' in answer["message"]) == (403, True)
    assert (await stage.ask("ann", f"{CLUSTERS}/edge1", "DELETE"))[0] == 403
    user, asked = stage.management.asked[0]
    assert (user, asked.verb, asked.group, asked.resource) == (
        "ann",
        "list",
        "cluster.open-cluster-management.io",
        "managedclusters",
    )


async def test_rights_of_the_hubs_own_roles_are_for_its_own_names(stage: Stage) -> None:
    """A ServiceAccount of the cluster has the name of one of the hub, and is another."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "metrics"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "metrics"}],
    }
    admin = holder(stage.hub, await stage.hub.admin())
    assert (await admin.ask("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding))[0] == 201
    assert (await stage.ask("system:serviceaccount:default:metrics"))[0] == 403
    stage.management.may.add(("system:serviceaccount:default:metrics", "create"))
    role = {**binding, "metadata": {"name": "mine"}, "subjects": [{"kind": "User", "name": "mallory"}]}
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    status, answer = await stage.ask("system:serviceaccount:default:metrics", path, "POST", role)
    assert status == 403, answer


async def test_a_token_of_the_cluster_is_reviewed_there(stage: Stage) -> None:
    assert (await get(nobody(stage.hub), CLUSTERS, "ann-token"))[0] == 200
    assert (await get(nobody(stage.hub), CLUSTERS, "bob-token"))[0] == 403
    status, answer = await get(nobody(stage.hub), CLUSTERS, "guess")
    assert (status, answer["message"]) == (401, "Unauthorized")


async def test_headers_of_anybody_else_are_nothing(stage: Stage) -> None:
    claim = {"X-Remote-User": "ann", "X-Remote-Group": "system:masters"}
    assert (await nobody(stage.hub).ask("GET", CLUSTERS, **claim))[0] == 403
    await stage.hub.join("edge1")
    agent = holder(stage.hub, await stage.hub.agent("edge1"))
    assert (await agent.ask("GET", CLUSTERS, **claim))[0] == 403
    status, _ = await stage.proxy(name="mallory").ask("GET", CLUSTERS, **claim)
    assert status == 401
    with pytest.raises(aiohttp.ClientError):
        await stage.proxy(OtherCA("front-proxy-ca")).ask("GET", CLUSTERS, **claim)


async def test_a_new_proxy_ca_is_believed_and_the_old_one_is_not(stage: Stage) -> None:
    old, new = stage.management.proxy_ca, OtherCA("front-proxy-ca")
    await stage.management.say(new)
    await stage.aggregation.look()
    ann = {"X-Remote-User": "ann"}
    assert (await stage.proxy(new).ask("GET", CLUSTERS, **ann))[0] == 200
    with pytest.raises(aiohttp.ClientError):
        await stage.proxy(old).ask("GET", CLUSTERS, **ann)


async def test_while_the_cluster_is_away_its_users_may_nothing_and_ours_work_on(stage: Stage) -> None:
    assert (await stage.ask("ann", "/apis/apps/v1/deployments"))[0] in (403, 404)
    await stage.management.stop()
    await stage.aggregation.look()
    assert (await stage.ask("carol"))[0] == 403
    assert (await get(nobody(stage.hub), CLUSTERS, "new-token"))[0] == 503
    assert (await holder(stage.hub, await stage.hub.admin()).get(CLUSTERS))[0] == 200


async def test_the_bundle_of_our_api_services_is_kept_and_of_no_others(stage: Stage) -> None:
    for name, namespace in (("v1.ours", "muster"), ("v1.theirs", "elsewhere")):
        await stage.management.add_api_service(name, {"namespace": namespace, "name": "hub"})
    await stage.aggregation.look()
    encoded = base64.b64encode(stage.hub.issuer.trust_bundle).decode()
    ours = await stage.management.api_service("v1.ours")
    assert ours["spec"]["caBundle"] == encoded
    assert "caBundle" not in (await stage.management.api_service("v1.theirs"))["spec"]
    stage.management.requests.clear()
    await stage.aggregation.look()
    assert {verb for verb, _ in stage.management.requests} == {"get", "list"}, "what is right is not written"


@pytest.mark.kubectl
async def test_kubectl_works_through_the_clusters_aggregation_layer(stage: Stage, tmp_path: Path) -> None:
    await stage.hub.join("edge1")
    async with AggregatingProxy(stage.management, stage.hub.server, stage.hub.issuer.trust_bundle) as proxy:

        async def kubectl_as(token: str) -> Ended:
            path = tmp_path / f"{token}.kubeconfig"
            clusters = [{"name": "m", "cluster": {"server": f"{proxy.url}/as/{token}"}}]
            path.write_text(yaml.safe_dump({**stage.management.kubeconfig, "clusters": clusters}))
            return await stage.hub.kubectl("get", "managedclusters", path=path)

        listed = await kubectl_as("ann-token")
        assert (listed.code, "edge1" in listed.out) == (0, True), listed
        refused = await kubectl_as("bob-token")
        assert 'User "bob" cannot list' in refused.err, refused
