"""Exec into hollow pods over the real channel, by the client that the hub uses, and Deployments whose pods come up."""

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hollow.cluster import AUTHORITY_PATH, HollowCluster
from hollow.faults import Faults
from machinery import pki
from machinery.errors import BadRequestError, DeadlineError, ForbiddenError, InvalidError, NotFoundError, UnavailableError
from machinery.kube.client import KubeClient, Resource
from machinery.kube.executing import Container, execute

PODS, DEPLOYMENTS = Resource("", "v1", "pods"), Resource("apps", "v1", "deployments")
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


@pytest.fixture
async def client(hollow_cluster: HollowCluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as connected:
        yield connected


async def pods(client: KubeClient) -> list[dict[str, Any]]:
    return list(await client.list(PODS.path(namespace="default"), {"labelSelector": "app=agent"}))


async def deployed(client: KubeClient, document: dict[str, Any] | None = None) -> Container:
    await client.create(DEPLOYMENTS.path(namespace="default"), document or deployment())
    [pod] = await pods(client)
    return Container("default", pod["metadata"]["name"], "sleeper")


async def test_a_command_answers_with_what_it_wrote(client: KubeClient) -> None:
    """The output is longer than one message of the channel."""
    output = await execute(client, await deployed(client), ("agent", "print"), within=SOON)
    pair = {name: base64.b64decode(text) for name, text in json.loads(output).items()}
    assert pki.key_matches(pair["tls.crt"], pair["tls.key"])
    assert len(output) > 512


async def test_a_bad_end_is_told_with_its_code_and_what_it_said(client: KubeClient) -> None:
    container = await deployed(client, deployment(path="/elsewhere/ca.crt"))
    with pytest.raises(UnavailableError, match=r"exit code 1: /elsewhere/ca.crt cannot be read: No such file"):
        await execute(client, container, ("agent", "print"), within=SOON)
    with pytest.raises(UnavailableError, match=r"exit code 127: sh: no such program"):
        await execute(client, container, ("sh",), within=SOON)


async def test_a_pod_or_container_that_is_not_there_is_refused(client: KubeClient) -> None:
    container = await deployed(client)
    with pytest.raises(NotFoundError):
        await execute(client, Container("default", "gone", "sleeper"), ("agent", "print"), within=SOON)
    with pytest.raises(NotFoundError):
        await execute(client, replace(container, name="other"), ("agent", "print"), within=SOON)


async def test_what_is_too_much_or_too_late_is_an_error_and_holds_nothing_of_it(
    client: KubeClient, hollow_cluster: HollowCluster
) -> None:
    container = await deployed(client)
    with pytest.raises(InvalidError, match=r"^the command wrote more than is taken$"):
        await execute(client, container, ("agent", "print"), within=SOON, limit=600)
    hollow_cluster.faults = Faults(hang=True)
    with pytest.raises(DeadlineError):
        await execute(client, container, ("agent", "print"), within=timedelta(milliseconds=200))


async def test_a_server_that_is_away_is_told_as_such(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    container = await deployed(client)
    await hollow_cluster.stop()
    with pytest.raises(UnavailableError, match="cannot reach"):
        await execute(client, container, ("agent", "print"), within=SOON)


async def test_pods_of_a_deployment_come_up_change_with_it_and_go_with_it(client: KubeClient) -> None:
    container = await deployed(client)
    [first] = await pods(client)
    assert (first["status"]["phase"], first["spec"]["nodeName"] != "") == ("Running", True)
    path = DEPLOYMENTS.path("agent", namespace="default")
    found = await client.get(path)
    await client.update(path, {**found, "spec": deployment(path="/pki/other.crt")["spec"]})
    [second] = await pods(client)
    assert second["metadata"]["name"] != container.pod
    await client.delete(PODS.path(second["metadata"]["name"], namespace="default"))
    [third] = await pods(client)
    assert third["metadata"]["uid"] != second["metadata"]["uid"], "it comes again, and is another"
    await client.delete(path)
    assert await pods(client) == []


async def test_a_deployment_whose_pods_it_would_not_find_is_refused(client: KubeClient) -> None:
    wrong = deployment()
    wrong["spec"]["selector"] = {"matchLabels": {"app": "other"}}
    with pytest.raises(InvalidError, match="does not match template"):
        await client.create(DEPLOYMENTS.path(namespace="default"), wrong)


async def test_a_pod_without_a_node_that_takes_it_waits(client: KubeClient) -> None:
    for node in await client.list("/api/v1/nodes"):
        await client.patch(f"/api/v1/nodes/{node['metadata']['name']}", {"spec": {"unschedulable": True}})
    container = await deployed(client)
    [pod] = await pods(client)
    assert pod["status"]["phase"] == "Pending"
    with pytest.raises(BadRequestError):
        await execute(client, container, ("agent", "print"), within=SOON)


async def test_an_exchanged_ca_lies_on_the_host_and_opens_the_cluster(
    hollow_cluster: HollowCluster, client: KubeClient
) -> None:
    container = await deployed(client)
    before = await execute(client, container, ("agent", "print"), within=SOON)
    await client.create(AUTHORITY_PATH, {})
    after = json.loads(await execute(client, container, ("agent", "print"), within=SOON))
    assert after != json.loads(before)
    authority = pki.Authority(base64.b64decode(after["tls.crt"]), base64.b64decode(after["tls.key"]))
    [manager] = await client.list(PODS.path(namespace="kube-system"), {"labelSelector": "component=kube-controller-manager"})
    assert manager["status"]["containerStatuses"][0]["restartCount"] == 1

    key, facts = pki.generate_key(), authority.facts
    plan = pki.Plan(
        pki.parse_certificate(authority.certificate).subject,
        pki.public_key_of(key),
        pki.random_serial(),
        facts.not_before,
        facts.not_after,
    )
    document = hollow_cluster.kubeconfig()
    shown = {"client-certificate-data": authority.sign(plan), "client-key-data": key}
    document["users"][0]["user"] = {name: base64.b64encode(pem).decode() for name, pem in shown.items()}
    async with await KubeClient.from_document(document) as somebody:
        with pytest.raises(ForbiddenError, match="CA"):
            await somebody.list("/api/v1/nodes")
        with pytest.raises(ForbiddenError):
            await execute(somebody, container, ("agent", "print"), within=SOON)
