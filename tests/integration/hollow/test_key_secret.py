"""The Secret with the keys of the hub's CAs, in a hollow cluster: made, changed entry by entry, and never half."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hollow.cluster import HollowCluster
from hub.domain.authority import AuthorityId
from hub.domain.certificate import Lifetimes
from hub.issuer.keyvaults import SecretKeys
from hub.issuer.local import make_authority
from hub.management import ClusterKeySecret
from hub.ports import KeyPair
from hub.services.authorities import authority_id
from machinery.errors import ForbiddenError, MusterError, UnavailableError
from machinery.kube.client import KubeClient, Query, Resource

SECRETS = Resource("", "v1", "secrets")


def made() -> tuple[AuthorityId, KeyPair]:
    authority, key = make_authority(Lifetimes(), datetime.now(UTC))
    return authority_id(authority.certificate), KeyPair(authority.certificate, key)


@pytest.fixture
async def client(hollow_cluster: HollowCluster) -> KubeClient:
    return await KubeClient.from_document(hollow_cluster.kubeconfig())


async def test_keys_are_kept_found_offered_and_forgotten_and_all_else_stays(client: KubeClient) -> None:
    async with ClusterKeySecret(client, "default", "hub-ca") as secret:
        place = SecretKeys(secret)
        (one, first), (two, second) = made(), made()
        assert await place.find(one) is None
        await place.keep(one, first)
        await secret.write({"note": b"an operator's"})
        await place.keep(two, second)
        await place.keep(two, second)
        assert (await place.find(one), await place.find(two)) == (first, second)
        offered = await place.offered([one])
        assert offered == second
        await place.forget(one)
        await place.forget(one)
        assert await place.find(one) is None
        assert sorted(await secret.read()) == [f"ca-{two}.crt", f"ca-{two}.key", "note"]
        assert await place.offered([two]) is None


async def test_who_loses_a_race_for_the_secret_looks_again_and_nothing_is_lost(client: KubeClient) -> None:
    async with ClusterKeySecret(client, "default", "hub-ca") as secret:
        pairs = [made() for _ in range(4)]
        await asyncio.gather(*(SecretKeys(secret).keep(one, pair) for one, pair in pairs))
        for one, pair in pairs:
            assert await SecretKeys(secret).find(one) == pair


Link = dict[str, Any] | MusterError


def owned(kind: str, name: str) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}
    return {"metadata": {"ownerReferences": [owner]}}


class WithChain(KubeClient):
    """Knows what our pod belongs to, which a hollow cluster need not have: answers and errors by the path's end."""

    links: Mapping[str, Link]

    async def get(self, path: str, query: Query | None = None, *, within: timedelta | None = None) -> dict[str, Any]:
        link = next((link for end, link in self.links.items() if path.endswith(end)), None)
        if isinstance(link, MusterError):
            raise link
        return link if link is not None else await super().get(path, query, within=within)


async def owners_of_the_secret(client: KubeClient, links: Mapping[str, Link]) -> list[tuple[str, str, str]]:
    """Of one that is made in such a cluster."""
    client.__class__ = WithChain
    vars(client)["links"] = links
    async with ClusterKeySecret(client, "default", "hub-ca", pod="hub-0") as secret:
        await secret.write({"a": b"b"})
        found = await client.get(SECRETS.path("hub-ca", namespace="default"))
        return [(each["kind"], each["name"], each["uid"]) for each in found["metadata"].get("ownerReferences", ())]


@pytest.mark.parametrize(
    ("links", "owner"),
    [
        ({"pods/hub-0": owned("StatefulSet", "hub"), "statefulsets/hub": {"metadata": {}}}, "StatefulSet"),
        (
            {
                "pods/hub-0": owned("ReplicaSet", "hub-5d"),
                "replicasets/hub-5d": owned("Deployment", "hub"),
                "deployments/hub": {"metadata": {}},
            },
            "Deployment",
        ),
    ],
)
async def test_the_secret_belongs_to_what_runs_the_hub(client: KubeClient, links: Mapping[str, Link], owner: str) -> None:
    assert await owners_of_the_secret(client, links) == [(owner, "hub", "uid-hub")]


async def test_keys_are_kept_also_where_what_runs_the_hub_may_not_be_read(client: KubeClient) -> None:
    links: dict[str, Link] = {"pods/hub-0": owned("ReplicaSet", "hub-5d"), "replicasets/hub-5d": ForbiddenError("no right")}
    assert await owners_of_the_secret(client, links) == []


async def test_while_the_cluster_is_away_no_secret_is_made_without_its_owner(client: KubeClient) -> None:
    with pytest.raises(UnavailableError):
        await owners_of_the_secret(client, {"pods/hub-0": UnavailableError("away")})
