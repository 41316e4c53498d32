"""A hollow cluster gives its ServiceAccounts what its roles say, and tells who asked what."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from hollow.cluster import HollowCluster
from hollow.objects import Shape
from machinery.apiserver.access import Attributes, Decision
from machinery.apiserver.storage import Actor
from machinery.errors import ForbiddenError, UnauthorizedError
from machinery.kube.client import KubeClient, Resource

ACCOUNTS = Resource("", "v1", "serviceaccounts")
SECRETS = Resource("", "v1", "secrets")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles")
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings")
USER = "system:serviceaccount:default:reader"


@dataclass
class Stage:
    cluster: HollowCluster
    admin: KubeClient
    told: list[tuple[str, str, str, bool]] = field(default_factory=list)

    async def token(self) -> str:
        spec = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
        path = ACCOUNTS.path("reader", namespace="default", subresource="token")
        return str((await self.admin.create(path, spec))["status"]["token"])

    async def account(self) -> KubeClient:
        kubeconfig = self.cluster.kubeconfig()
        kubeconfig["users"][0]["user"] = {"token": await self.token()}
        return await KubeClient.from_document(kubeconfig)

    async def grant(self, *rules: dict[str, Any]) -> None:
        await self.admin.create(ROLES.path(namespace="default"), {"metadata": {"name": "reader"}, "rules": list(rules)})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
        subjects = [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}]
        binding = {"metadata": {"name": "reader"}, "roleRef": role, "subjects": subjects}
        await self.admin.create(BINDINGS.path(namespace="default"), binding)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    told: list[tuple[str, str, str, bool]] = []

    def tell(actor: Actor, asked: Attributes, decision: Decision) -> None:
        told.append((actor.user, asked.verb, asked.resource, decision.allowed))

    async with (
        HollowCluster(Shape("roles"), tell=tell) as cluster,
        await KubeClient.from_document(cluster.kubeconfig()) as admin,
    ):
        await admin.create(ACCOUNTS.path(namespace="default"), {"metadata": {"name": "reader"}})
        yield Stage(cluster, admin, told)


async def test_an_account_may_what_its_role_says_and_nothing_else(stage: Stage) -> None:
    async with await stage.account() as account:
        with pytest.raises(ForbiddenError, match=f'User "{USER}" cannot list resource "secrets"'):
            await account.list(SECRETS.path(namespace="default"))
        await stage.grant({"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]})
        assert await account.list(SECRETS.path(namespace="default")) == ()
        with pytest.raises(ForbiddenError):
            await account.list(SECRETS.path(namespace="kube-system"))
        with pytest.raises(ForbiddenError):
            await account.get(SECRETS.path("one", namespace="default"))
        assert (await account.raw("GET", "/livez")).status == 200
    mine = [told[1:] for told in stage.told if told[0] == USER and told[2]]
    assert mine == [
        ("list", "secrets", False),
        ("list", "secrets", True),
        ("list", "secrets", False),
        ("get", "secrets", False),
    ]


async def test_a_token_ends_with_its_account(stage: Stage) -> None:
    async with await stage.account() as account:
        assert (await account.raw("GET", "/apis")).status == 200
        await stage.admin.delete(ACCOUNTS.path("reader", namespace="default"))
        with pytest.raises(UnauthorizedError):
            await account.get("/apis")


async def test_a_token_of_another_cluster_opens_nothing(stage: Stage) -> None:
    async with HollowCluster(Shape("other")) as other:
        kubeconfig = other.kubeconfig()
        kubeconfig["users"][0]["user"] = {"token": await stage.token()}
        async with await KubeClient.from_document(kubeconfig) as stranger:
            with pytest.raises(UnauthorizedError):
                await stranger.get("/apis")
