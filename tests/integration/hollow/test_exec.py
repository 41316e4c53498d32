"""Exec, Deployments, and the Secret with the keys of the CA in a hollow cluster."""

import asyncio
import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hollow.cluster import AUTHORITY_PATH, HollowCluster
from hollow.faults import Faults
from hub.api.certificateauthorities.authority import AuthorityId
from hub.api.certificates import Lifetimes
from hub.extensions.kube_cert_agent import deployment as rules
from hub.extensions.kube_cert_agent.cluster_client import DEPLOYMENTS, PODS, ClusterClient, parse_cluster_info, parse_printed
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape
from hub.issuer.key_storage import SecretKeys
from hub.issuer.local import make_authority
from hub.ports.identities import KeyPair
from hub.registry.certificateauthorities.service import authority_id
from hub.replica.host_secrets import ClusterKeySecret
from machinery import errors, pki
from machinery.client.exec import Container, execute
from machinery.client.rest import KubeClient, Query, RestResource
from tests.checks import check_refusal_of

SOON = timedelta(seconds=20)
LABELS = {"app": "agent"}


def deployment(name: str = "agent", *, path: str = "/pki/ca.crt") -> dict[str, Any]:
    container = {
        "name": "sleeper",
        "image": "i",
        "env": [{"name": "CERT_PATH", "value": path}, {"name": "KEY_PATH", "value": "/pki/ca.key"}],
        "volumeMounts": [{"name": "pki", "mountPath": "/pki"}],
    }
    volumes = [{"name": "pki", "hostPath": {"path": "/etc/kubernetes/pki"}}]
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container], "volumes": volumes}}
    spec = {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def pods(client: KubeClient) -> list[dict[str, Any]]:
    return list(await client.list(PODS.path(namespace="default"), {"labelSelector": "app=agent"}))


async def deployed(client: KubeClient, document: dict[str, Any] | None = None) -> Container:
    """The container of a new deployment; an older one of its name is deleted."""
    with suppress(errors.NotFoundError):
        await client.delete(DEPLOYMENTS.path("agent", namespace="default"))
    await client.create(DEPLOYMENTS.path(namespace="default"), document or deployment())
    [pod] = await pods(client)
    return Container("default", pod["metadata"]["name"], "sleeper")


async def test_command_returns_output_and_is_stopped_at_its_limits(client: KubeClient, hollow_cluster: HollowCluster) -> None:
    output = await execute(client, await deployed(client), ("agent", "print"), within=SOON)
    pair = {name: base64.b64decode(text) for name, text in json.loads(output).items()}
    assert pki.key_matches(pair["tls.crt"], pair["tls.key"])
    assert len(output) > 512
    container = await deployed(client, deployment(path="/elsewhere/ca.crt"))
    with pytest.raises(errors.UnavailableError, match=r"exit code 1: /elsewhere/ca.crt cannot be read: No such file"):
        await execute(client, container, ("agent", "print"), within=SOON)
    with pytest.raises(errors.UnavailableError, match=r"exit code 127: sh: no such program"):
        await execute(client, container, ("sh",), within=SOON)

    container = await deployed(client)
    for absent in (replace(container, pod="gone"), replace(container, name="other")):
        await check_refusal_of(errors.NotFoundError, execute(client, absent, ("agent", "print"), within=SOON))
    with pytest.raises(errors.InvalidError, match=r"^the output of the command is too long$"):
        await execute(client, container, ("agent", "print"), within=SOON, limit=600)
    hollow_cluster.faults = Faults(hang=True)
    with pytest.raises(errors.DeadlineError):
        await execute(client, container, ("agent", "print"), within=timedelta(milliseconds=200))
    await hollow_cluster.stop()
    with pytest.raises(errors.UnavailableError, match="cannot reach"):
        await execute(client, container, ("agent", "print"), within=SOON)


async def test_deployment_runs_pods_only_where_it_can(client: KubeClient) -> None:
    container = await deployed(client)
    [first] = await pods(client)
    assert (first["status"]["phase"], bool(first["spec"]["nodeName"])) == ("Running", True)
    path = DEPLOYMENTS.path("agent", namespace="default")
    await client.update(path, {**await client.get(path), "spec": deployment(path="/pki/other.crt")["spec"]})
    [second] = await pods(client)
    assert second["metadata"]["name"] != container.pod
    await client.delete(PODS.path(second["metadata"]["name"], namespace="default"))
    [third] = await pods(client)
    assert third["metadata"]["uid"] != second["metadata"]["uid"], "it comes again, and is another"
    await client.delete(path)
    assert await pods(client) == []

    wrong = deployment()
    wrong["spec"]["selector"] = {"matchLabels": {"app": "other"}}
    with pytest.raises(errors.InvalidError, match="does not match template"):
        await client.create(DEPLOYMENTS.path(namespace="default"), wrong)

    for node in await client.list("/api/v1/nodes"):
        await client.patch(f"/api/v1/nodes/{node['metadata']['name']}", {"spec": {"unschedulable": True}})
    container = await deployed(client)
    [pod] = await pods(client)
    assert pod["status"]["phase"] == "Pending"
    await check_refusal_of(errors.BadRequestError, execute(client, container, ("agent", "print"), within=SOON))


async def test_exchanged_ca_lies_on_the_host_and_opens_the_cluster(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    container = await deployed(client)
    before = await execute(client, container, ("agent", "print"), within=SOON)
    await client.create(AUTHORITY_PATH, {})
    after = json.loads(await execute(client, container, ("agent", "print"), within=SOON))
    assert after != json.loads(before)
    authority = pki.CertificateAuthority(base64.b64decode(after["tls.crt"]), base64.b64decode(after["tls.key"]))
    [manager] = await client.list(PODS.path(namespace="kube-system"), {"labelSelector": "component=kube-controller-manager"})
    assert manager["status"]["containerStatuses"][0]["restartCount"] == 1

    key, facts, serial = pki.generate_key(), pki.parse_certificate(authority.certificate), pki.random_serial()
    plan = pki.Plan(facts.subject, pki.public_key_of(key), serial, facts.not_before, facts.not_after)
    document = hollow_cluster.kubeconfig()
    shown = {"client-certificate-data": authority.sign(plan), "client-key-data": key}
    document["users"][0]["user"] = {name: base64.b64encode(pem).decode() for name, pem in shown.items()}
    async with await KubeClient.from_document(document) as somebody:
        await check_refusal_of(errors.ForbiddenError, somebody.list("/api/v1/nodes"), match="CA")
        await check_refusal_of(errors.ForbiddenError, execute(somebody, container, ("agent", "print"), within=SOON))


SHAPE = AgentDeploymentShape("default", "agent", "muster/hub:test", "default", {"extra": "yes"})
PATH = DEPLOYMENTS.path("agent", namespace="default")


async def made(host: ClusterClient) -> Any:
    [manager] = await host.managers()
    await host.create(rules.deployment(SHAPE, manager))
    return await host.deployment()


async def test_deployment_or_pod_that_changed_since_is_not_removed(client: KubeClient) -> None:
    host = ClusterClient(client, SHAPE)
    read = await made(host)
    await client.patch(PATH, {"metadata": {"annotations": {"somebody": "was here"}}})
    await check_refusal_of(errors.ConflictError, host.remove(read))
    await client.delete(PATH)
    await made(host)
    with pytest.raises(errors.ConflictError):
        await host.remove(read)  # another of that name
    [read] = await host.agents()
    await client.delete(PODS.path(read["metadata"]["name"], namespace="default"))
    await check_refusal_of(errors.ConflictError, host.remove_pod(read))
    [pod] = await host.agents()
    assert await host.pod(pod["metadata"]["name"]) == pod
    assert await host.pod("gone") is None
    now = await host.deployment()
    assert now is not None
    await host.remove(now)
    assert await host.deployment() is None


async def test_what_a_server_keeps_of_it_is_as_wanted_and_what_it_prints_is_the_clusters_ca(
    client: KubeClient, hollow_cluster: HollowCluster
) -> None:
    host = ClusterClient(client, SHAPE)
    kept = await made(host)
    [manager] = await host.managers()
    assert rules.is_as_wanted(kept, rules.deployment(SHAPE, manager))
    [pod] = await host.agents()
    assert pki.key_matches(*parse_printed(await host.printed(pod["metadata"]["name"]), "agent"))
    authority = hollow_cluster.kubeconfig()["clusters"][0]["cluster"]["certificate-authority-data"]
    assert parse_cluster_info(await host.cluster_info()) == (hollow_cluster.url, authority)


SECRETS = RestResource("", "v1", "secrets")


def made_pair() -> tuple[AuthorityId, KeyPair]:
    authority, key = make_authority(Lifetimes(), datetime.now(UTC))
    return authority_id(authority.certificate), KeyPair(authority.certificate, key)


async def test_keys_are_kept_found_offered_and_forgotten_and_no_race_loses_one(client: KubeClient) -> None:
    async with client:
        secret = ClusterKeySecret(client, "default", "hub-ca")
        place = SecretKeys(secret)
        (one, first), (two, second) = made_pair(), made_pair()
        assert await place.find(one) is None
        await place.keep(one, first)
        await secret.write({"note": b"an operator's"})
        await place.keep(two, second)
        await place.keep(two, second)
        assert (await place.find(one), await place.find(two), await place.offered([one])) == (first, second, second)
        await place.forget(one)
        await place.forget(one)
        assert await place.find(one) is None
        assert sorted(await secret.read()) == [f"ca-{two}.crt", f"ca-{two}.key", "note"]
        assert await place.offered([two]) is None

        pairs = [made_pair() for _ in range(4)]
        await asyncio.gather(*(SecretKeys(secret).keep(one, pair) for one, pair in pairs))
        for one, pair in pairs:
            assert await SecretKeys(secret).find(one) == pair


Link = dict[str, Any] | errors.MusterError


def owned(kind: str, name: str) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}
    return {"metadata": {"ownerReferences": [owner]}}


class WithChain(KubeClient):
    """Knows what our pod belongs to, which a hollow cluster need not have: answers and errors by the path's end."""

    links: Mapping[str, Link]

    async def get(self, path: str, query: Query | None = None) -> dict[str, Any]:
        link = next((link for end, link in self.links.items() if path.endswith(end)), None)
        if isinstance(link, errors.MusterError):
            raise link
        return link if link is not None else await super().get(path, query)


async def owners_of(name: str, cluster: HollowCluster, links: Mapping[str, Link]) -> list[tuple[str, str, str]]:
    """The owners of a Secret that is created in such a cluster."""
    client = await WithChain.from_document(cluster.kubeconfig())
    vars(client)["links"] = links
    async with client:
        await ClusterKeySecret(client, "default", name, pod="hub-0").write({"a": b"b"})
        found = await client.get(SECRETS.path(name, namespace="default"))
        return [(each["kind"], each["name"], each["uid"]) for each in found["metadata"].get("ownerReferences", ())]


async def test_secret_belongs_to_what_runs_the_hub_and_is_kept_without_a_readable_owner(hollow_cluster: HollowCluster) -> None:
    links: dict[str, Link] = {"pods/hub-0": owned("StatefulSet", "hub"), "statefulsets/hub": {"metadata": {}}}
    assert await owners_of("one", hollow_cluster, links) == [("StatefulSet", "hub", "uid-hub")]
    links = {"pods/hub-0": owned("ReplicaSet", "hub-5d"), "deployments/hub": {"metadata": {}}}
    links["replicasets/hub-5d"] = owned("Deployment", "hub")
    assert await owners_of("two", hollow_cluster, links) == [("Deployment", "hub", "uid-hub")]
    links["replicasets/hub-5d"] = errors.ForbiddenError("no right")
    assert await owners_of("three", hollow_cluster, links) == []
    with pytest.raises(errors.UnavailableError):
        await owners_of("four", hollow_cluster, {"pods/hub-0": errors.UnavailableError("away")})
