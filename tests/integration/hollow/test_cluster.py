"""A hollow cluster's own promises: who may use it, its faults, its lives."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hollow.cluster import HollowCluster
from hollow.faults import HEALTHY, Faults
from hollow.illness import ADMIN_PATH
from hollow.objects import Shape
from machinery.errors import ForbiddenError, InvalidError, UnauthorizedError, UnavailableError
from machinery.kube.client import KubeClient

NODES = "/api/v1/nodes"
LONG = timedelta(seconds=30)


@pytest.fixture
async def client(hollow_cluster: HollowCluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as connected:
        yield connected


def as_user(hollow_cluster: HollowCluster, user: dict[str, Any]) -> dict[str, Any]:
    document = hollow_cluster.kubeconfig()
    document["users"][0]["user"] = user
    return document


async def test_the_token_opens_what_the_certificate_opens(hollow_cluster: HollowCluster) -> None:
    async with await KubeClient.from_document(hollow_cluster.kubeconfig(token=True)) as client:
        assert len(await client.list(NODES)) == 3
        assert await client.get(ADMIN_PATH) == {}


async def test_a_pod_finds_its_cluster_by_its_service_account(hollow_cluster: HollowCluster, tmp_path: Path) -> None:
    document = hollow_cluster.kubeconfig(token=True)
    (tmp_path / "token").write_text(document["users"][0]["user"]["token"])
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(document["clusters"][0]["cluster"]["certificate-authority-data"]))
    host, _, port = hollow_cluster.url.removeprefix("https://").rpartition(":")
    pod = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    async with KubeClient.in_cluster(account=tmp_path, environment=pod) as client:
        assert len(await client.list(NODES)) == 3
    (tmp_path / "token").unlink()
    with pytest.raises(InvalidError, match="Service token file does not exist"):
        KubeClient.in_cluster(account=tmp_path, environment=pod)


async def test_a_rotated_token_file_is_read_again(hollow_cluster: HollowCluster, tmp_path: Path) -> None:
    document = hollow_cluster.kubeconfig(token=True)
    token = document["users"][0]["user"].pop("token")
    (tmp_path / "token").write_text("not yet\n")
    document["users"][0]["user"]["tokenFile"] = "token"
    async with await KubeClient.from_document(document, base=tmp_path) as client:
        with pytest.raises(UnauthorizedError):
            await client.get(NODES)
        (tmp_path / "token").write_text(f"{token}\n")
        client._api.configuration.refresh_api_key_hook._due = 0.0
        assert len(await client.list(NODES)) == 3


async def test_a_credential_plugin_is_asked_for_the_token(hollow_cluster: HollowCluster, tmp_path: Path) -> None:
    document = hollow_cluster.kubeconfig(token=True)
    token = document["users"][0]["user"].pop("token")
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": token, "expirationTimestamp": "2000-01-01T00:00:00Z"},
    }
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho '{json.dumps(answer)}'\n")
    plugin.chmod(0o700)
    document["users"][0]["user"]["exec"] = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "interactiveMode": "Never",
    }
    async with await KubeClient.from_document(document) as client:
        assert len(await client.list(NODES)) == 3
    assert len((tmp_path / "asked").read_text().split()) > 1  # its token was over: it is asked again


async def test_a_wrong_token_opens_nothing(hollow_cluster: HollowCluster) -> None:
    async with await KubeClient.from_document(as_user(hollow_cluster, {"token": "guessed"})) as client:
        for path in (NODES, ADMIN_PATH, "/version"):
            with pytest.raises(UnauthorizedError):
                await client.get(path)


async def test_who_shows_nothing_may_see_health_and_version_only(hollow_cluster: HollowCluster) -> None:
    async with await KubeClient.from_document(as_user(hollow_cluster, {"username": "nobody", "password": "x"})) as client:
        client._api.configuration.api_key.clear()
        assert (await client.raw("GET", "/livez")).status == 200
        assert (await client.get("/version"))["gitVersion"] == hollow_cluster.shape.version
        for path in (NODES, ADMIN_PATH):
            with pytest.raises(ForbiddenError):
                await client.get(path)


async def test_a_certificate_of_another_cluster_of_the_same_name_opens_nothing(hollow_cluster: HollowCluster) -> None:
    async with HollowCluster(hollow_cluster.shape) as twin:
        stranger = as_user(hollow_cluster, twin.kubeconfig()["users"][0]["user"])
        async with await KubeClient.from_document(stranger) as client:
            with pytest.raises(UnavailableError):
                await client.get(NODES)


async def test_faults_are_switched_over_the_admin_path_even_when_nothing_else_answers(
    hollow_cluster: HollowCluster, client: KubeClient
) -> None:
    assert await client.update(ADMIN_PATH, {"hang": True}) == {"hang": True}
    assert hollow_cluster.faults == Faults(hang=True)
    assert await client.get(ADMIN_PATH) == {"hang": True}
    assert await client.update(ADMIN_PATH, {}) == {}
    assert hollow_cluster.faults == HEALTHY


async def test_a_fault_that_does_not_exist_is_refused_and_changes_nothing(
    hollow_cluster: HollowCluster, client: KubeClient
) -> None:
    hollow_cluster.faults = Faults(not_live=True)
    with pytest.raises(InvalidError, match='no fault is called "tired"'):
        await client.update(ADMIN_PATH, {"tired": True})
    assert (await client.raw("PUT", ADMIN_PATH, body="words", content_type="text/plain")).status == 422
    assert hollow_cluster.faults == Faults(not_live=True)


async def test_a_request_that_hangs_goes_on_when_the_fault_is_over(hollow_cluster: HollowCluster, client: KubeClient) -> None:
    hollow_cluster.faults = Faults(hang=True)
    hanging = asyncio.create_task(client.list(NODES))
    assert await client.get(ADMIN_PATH) == {"hang": True}
    assert not hanging.done()
    hollow_cluster.faults = HEALTHY
    assert len(await asyncio.wait_for(hanging, 5)) == 3


@pytest.mark.parametrize(("faults", "done"), [(Faults(stall_before_write=2), 1), (Faults(stall_after_write=2), 2)])
async def test_the_nth_write_of_a_secret_stalls_and_later_ones_with_it(
    hollow_cluster: HollowCluster, client: KubeClient, faults: Faults, done: int
) -> None:
    hollow_cluster.faults = faults
    path = "/api/v1/namespaces/default/secrets"

    async def create(name: str) -> object:
        return await client.create(path, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}})

    await create("first")
    stalling = [asyncio.create_task(create(name)) for name in ("second", "third")]
    await asyncio.wait_for(hollow_cluster.stalled(), 5)
    assert len(await client.list(path)) == done
    assert len(await client.list(NODES)) == 3
    for task in stalling:
        task.cancel()  # who waits is killed
    hollow_cluster.faults = HEALTHY
    assert len(await client.list(path)) == done


@pytest.mark.parametrize("faults", [Faults(error=True), Faults(hang=True)])
async def test_a_server_that_fails_drops_its_watches(hollow_cluster: HollowCluster, client: KubeClient, faults: Faults) -> None:
    query = {"resourceVersion": (await client.get(NODES))["metadata"]["resourceVersion"]}
    async with client.watch(NODES, query, within=LONG) as events:
        following = asyncio.create_task(_drain(events))
        await client.patch(f"{NODES}/test-node-0", {"spec": {"unschedulable": True}})
        hollow_cluster.faults = faults
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(following, 5)


async def _drain(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass


async def test_stopping_waits_neither_for_watches_nor_for_requests_that_hang(
    hollow_cluster: HollowCluster, client: KubeClient
) -> None:
    query = {"resourceVersion": (await client.get(NODES))["metadata"]["resourceVersion"]}
    async with client.watch(NODES, query, within=LONG):
        hollow_cluster.faults = Faults(hang=True)
        hanging = asyncio.create_task(client.list(NODES))
        await client.get(ADMIN_PATH)
        await asyncio.wait_for(hollow_cluster.stop(), 15)
    await asyncio.gather(hanging, return_exceptions=True)


async def test_a_restarted_cluster_has_the_same_address_certificates_and_objects(
    hollow_cluster: HollowCluster, client: KubeClient
) -> None:
    before = hollow_cluster.kubeconfig()
    await client.patch(f"{NODES}/test-node-0", {"spec": {"unschedulable": True}})
    await hollow_cluster.stop()
    with pytest.raises(UnavailableError):
        await client.get(NODES)
    await hollow_cluster.start()
    assert hollow_cluster.kubeconfig() == before
    assert (await client.get(f"{NODES}/test-node-0"))["spec"]["unschedulable"] is True


async def test_a_cluster_made_anew_has_the_same_identity_and_an_object_made_anew_another(client: KubeClient) -> None:
    system = "/api/v1/namespaces/kube-system"
    first = (await client.get(system))["metadata"]["uid"]
    async with HollowCluster(Shape("test", nodes=1)) as again, await KubeClient.from_document(again.kubeconfig()) as other:
        assert (await other.get(system))["metadata"]["uid"] == first
    await client.delete(system)
    await client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})
    assert (await client.get(system))["metadata"]["uid"] != first


@pytest.mark.parametrize(
    ("host", "advertise", "server"),
    [
        ("0.0.0.0", "127.0.0.1", "https://127.0.0.1:"),  # noqa: S104 - what a container does
        ("127.0.0.1", "localhost", "https://localhost:"),
        ("localhost", "", "https://localhost:"),
        ("::1", "", "https://[::1]:"),
    ],
)
async def test_the_kubeconfig_tells_the_advertised_address_and_its_certificate_holds(
    host: str, advertise: str, server: str
) -> None:
    async with HollowCluster(Shape("test"), host=host, advertise=advertise) as cluster:
        assert cluster.url.startswith(server)
        async with await KubeClient.from_document(cluster.kubeconfig()) as client:
            assert len(await client.list(NODES)) == 3


@pytest.mark.parametrize(
    ("host", "said"),
    [("0.0.0.0", "--advertise"), ("::", "--advertise"), ("no host", "neither an address nor a host name")],  # noqa: S104 - refused
)
def test_an_address_that_nobody_can_connect_to_is_refused(host: str, said: str) -> None:
    with pytest.raises(InvalidError, match=said):
        HollowCluster(Shape("test"), host=host)


async def test_a_port_in_use_is_refused(hollow_cluster: HollowCluster) -> None:
    port = int(hollow_cluster.url.rpartition(":")[2])
    with pytest.raises(UnavailableError, match=f":{port} is in use"):
        await HollowCluster(Shape("other"), port=port).start()
