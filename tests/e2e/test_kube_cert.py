"""Logins signed by the CA of the cluster that the hub runs in: real hubs against a hollow cluster with exec."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from machinery import pki
from machinery.client.rest import KubeClient, RestResource
from machinery.errors import ForbiddenError
from machinery.runtime.tls import client_context
from tests.e2e.processes import Bench, is_gone, until
from tests.e2e.test_login import LOGIN, authenticator
from tests.fakes.authority import OtherCA
from tests.fakes.identity import FakeWebhook, running
from tests.programs import run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
ISSUER = "/apis/hub.open-cluster-management.io/v1alpha1/credentialissuers/hub"
PODS, DEPLOYMENT = RestResource("", "v1", "pods"), RestResource("apps", "v1", "deployments").path("agent", namespace="default")
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
FLAGS = (
    *("--kube-cert-agent=true", "--kube-cert-agent-image=muster/hub:e2e", "--kube-cert-agent-namespace=default"),
    *(
        "--kube-cert-agent-name=agent",
        "--kube-cert-agent-labels=app.kubernetes.io/part-of=muster",
        "--kubernetes-ca-groups=ops",
    ),
)


def signer(certificate: bytes) -> str:
    return f"kubernetes/{pki.parse_certificate(certificate).key_hash[:16]}"


def authority_of(kubeconfig: Path) -> bytes:
    """What the cluster signs with, before it is exchanged: what it shows is of that CA too."""
    return base64.b64decode(yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority-data"])


async def signs_with(bench: Bench, expected: str) -> Mapping[str, Any]:
    async def reported() -> Mapping[str, Any] | None:
        [found] = (await bench.get(ISSUER))["status"]["strategies"]
        return found if found["status"] == "Success" and found.get("signer") == expected else None

    found: Mapping[str, Any] = await until(reported, what=f"{expected} is reported")
    return found


@asynccontextmanager
async def webhook(bench: Bench) -> AsyncIterator[FakeWebhook]:
    """Somebody who knows ann, and whom the hub believes."""
    hook = FakeWebhook(OtherCA("people"), {"ann-token": {"username": "ann", "groups": ["ops", "qa"]}})
    async with running(hook), await KubeClient.from_file(bench.admin) as client:
        document = authenticator("WebhookAuthenticator", "hook", hook.authority, endpoint=hook.url)
        await client.create(f"{LOGIN}/webhookauthenticators", document)
        yield hook


async def login(bench: Bench) -> Mapping[str, str]:
    """Ann's certificate and key, as a kubeconfig's user."""
    named = {"apiGroup": LOGIN.split("/")[2], "kind": "WebhookAuthenticator", "name": "hook"}
    asked = {
        "apiVersion": LOGIN.removeprefix("/apis/"),
        "kind": "TokenCredentialRequest",
        "spec": {"token": "ann-token", "authenticator": named},
    }
    async with await KubeClient.from_file(bench.admin) as client:
        answer = await client.create(f"{LOGIN}/tokencredentialrequests", asked)
    given = answer["status"]["credential"]
    pems = {"client-certificate-data": given["clientCertificateData"], "client-key-data": given["clientKeyData"]}
    return {name: base64.b64encode(pem.encode()).decode() for name, pem in pems.items()}


async def exchange(kubeconfig: Path) -> bytes:
    """Has a hollow cluster sign with another CA: its certificate."""
    ended = await run("hollow", "exchange-ca", "--kubeconfig", str(kubeconfig))
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.encode()


async def is_let_in(bench: Bench, user: Mapping[str, str]) -> bool:
    """Whether the handshake at the agents' door succeeds; with TLS 1.3 a client hears of it when it reads."""
    chain, key = (base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key"))
    context = client_context((bench.data / "ca.crt").read_bytes(), chain, key)
    context.set_alpn_protocols(["h2"])
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.grpc_port, ssl=context)
        try:
            return bool(await asyncio.wait_for(reader.read(1), 10))
        finally:
            writer.transport.abort()
    except (ssl.SSLError, ConnectionError):
        return False


def as_user(kubeconfig: Path, user: Mapping[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
    document["users"][0]["user"] = dict(user)
    return document


async def test_a_login_opens_the_hub_and_its_cluster_and_another_ca_is_followed(bench: Bench) -> None:
    file = await bench.hollow("mgmt")
    first = signer(authority_of(file))
    hub = await bench.hub(*FLAGS, f"--management-cluster={file}")
    answer = await signs_with(bench, first)
    assert answer["reason"] == "FetchedKey"
    server = yaml.safe_load(file.read_text())["clusters"][0]["cluster"]["server"]
    assert answer["frontend"]["tokenCredentialRequestInfo"]["server"] == server

    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(await KubeClient.from_file(file))
        await stack.enter_async_context(webhook(bench))
        user = await login(bench)
        async with await KubeClient.from_document(as_user(bench.admin, user)) as at_hub:
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            who = (await at_hub.create(WHO, review))["status"]["userInfo"]
            assert (who["username"], "ops" in who["groups"], "qa" in who["groups"]) == ("ann", True, False)
        assert not await is_let_in(bench, user), "the agents' door knows none of that CA"
        admin = yaml.safe_load(bench.admin.read_text())["users"][0]["user"]
        assert await is_let_in(bench, admin), "it lets the hub's own in"
        async with await KubeClient.from_document(as_user(file, user)) as at_cluster:
            with pytest.raises(ForbiddenError, match="ann"):
                await at_cluster.list("/api/v1/nodes")  # it knows her, and gives her nothing

        # a key that is exchanged on the control plane's host
        exchanged = await exchange(file)
        second = signer(exchanged)
        assert second != first
        await signs_with(bench, second)
        assert pki.is_issued_by(base64.b64decode((await login(bench))["client-certificate-data"]), exchanged)

        # what others take away, and what older hubs left
        await cluster.delete(DEPLOYMENT)
        await until(lambda: cluster.get(DEPLOYMENT), what="the Deployment is made again")
        labels = {"kube-cert-agent.muster/agent": "v0", "app.kubernetes.io/part-of": "muster"}
        old = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "old", "namespace": "default", "labels": labels}}
        await cluster.create(PODS.path(namespace="default"), {**old, "spec": {"containers": []}})
        await until(lambda: is_gone(cluster.get(PODS.path("old", namespace="default"))), what="an older pod is removed")
    assert await hub.stop() == 0
    assert "PRIVATE" not in hub.output
