"""An agent that speaks nothing but the Kubernetes API, at our hub and at one of Open Cluster Management."""

import re
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from machinery.apiserver.kinds.certificates import CERTIFICATE_SIGNING_REQUEST
from machinery.apiserver.kinds.core import LEASE
from machinery.apiserver.kinds.events import EVENTS_V1
from machinery.client.rest import KubeClient
from tests.e2e.processes import AVAILABLE, CLUSTERS, SHORT_LEASE, Bench, Program, is_available, status_of, until
from tests.fakes.ocm_hub import CLUSTER, OcmHub, ocm_hub

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

JOINED = "ManagedClusterJoined"


def connections(pid: int, port: int) -> int:
    """Open TCP connections of a process to a local port."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(link.readlink().name)
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    wanted = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), 'little'):08X}:{port:04X}"
    return sum(f"socket:[{line[9]}]" in inodes for line in lines if line[2] == wanted)


async def test_a_token_and_the_https_door_are_all_it_takes_to_join_and_to_outlive_kills(bench: Bench) -> None:
    hub = await bench.hub(*SHORT_LEASE)
    spoke = await bench.spoke("c1", await bench.bootstrap("c1", "--token"))
    await spoke.says("request.waiting")
    (request,) = await bench.requests()
    assert status_of(await bench.cluster("c1"), JOINED) is None
    await bench.hubctl("certificate", "approve", request["metadata"]["name"])
    await spoke.says("hub.not_accepted")
    assert "hubctl accept" in (await spoke.probe("/readyz"))[1]
    await bench.hubctl("accept", "c1")
    document = await bench.available("c1")
    assert status_of(document, JOINED) == "True"
    async with bench.kubernetes("c1") as client:
        assert document["status"]["capacity"]["nodes"] == str(len(await client.list("/api/v1/nodes")))
    assert {claim["name"] for claim in document["status"]["clusterClaims"]} >= {"id.k8s.io"}
    assert "true" in (await bench.hubctl("get", "clusters", "c1")).lower()
    assert connections(spoke.pid, bench.grpc_port) == 0, "not one connection to the gRPC door"

    async def ready() -> bool:
        return (await spoke.probe("/readyz"))[0] == 200

    await until(ready, what="the agent is ready")

    async with await KubeClient.from_file(bench.admin) as operator:
        await operator.patch(f"{CLUSTERS}/c1", {"spec": {"leaseDurationSeconds": 1}})
    await hub.kill()
    await spoke.says("reconnecting")
    assert (await spoke.probe("/livez"))[0] == 200
    await hub.start()
    await spoke.says("session.opened", 2)
    await bench.available("c1")
    await spoke.kill()
    await bench.cluster_when("c1", lambda one: status_of(one, AVAILABLE) == "Unknown", what="is silent")
    await spoke.start()
    await bench.available("c1")
    assert len(await bench.requests()) == 1


async def ocm_available(hub: OcmHub) -> dict[str, Any]:
    async def seen() -> Any:
        document = await hub.cluster("c1")
        return document if is_available(document) else None

    return dict(await until(seen, what="c1 is Available"))


async def test_it_joins_waits_reports_renews_and_is_denied_and_deleted_like_any_agent(bench: Bench, tmp_path: Path) -> None:
    async with ocm_hub(lifetime=timedelta(seconds=8)) as hub:
        file = tmp_path / "ocm.bootstrap"
        file.write_bytes(hub.bootstrap_kubeconfig())
        spoke = await bench.spoke("c1", file, "--cluster-annotations=agent.open-cluster-management.io/site=b")
        await spoke.says("request.waiting")
        (request,) = await hub.found(CERTIFICATE_SIGNING_REQUEST)
        assert request["metadata"]["name"].startswith("c1-")
        assert request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client"
        assert request["metadata"]["labels"] == {"open-cluster-management.io/cluster-name": "c1"}
        assert (await hub.cluster("c1"))["spec"]["hubAcceptsClient"] is False

        await hub.approve(request["metadata"]["name"])
        await spoke.says("hub.not_accepted")
        await hub.add_on("c1", "logs")
        await hub.accept("c1")
        document = await ocm_available(hub)
        assert status_of(document, JOINED) == "True"
        assert status_of(document, "HubAcceptedManagedCluster") == "True", "the hub's own condition stays"
        assert document["metadata"]["annotations"]["agent.open-cluster-management.io/site"] == "b"

        async def renewals() -> list[str]:
            leases = await hub.found(LEASE, "c1")
            return [one["spec"]["renewTime"] for one in leases if one["metadata"]["name"] == "managed-cluster-lease"]

        before = await renewals()

        async def beaten() -> bool:
            return await renewals() > before

        await until(beaten, what="the lease is renewed")

        async def told() -> bool:
            return [event["reason"] for event in await hub.found(EVENTS_V1, "c1")] == ["Available"]

        await until(told, what="one Event tells of it")

        await hub.fall_silent("c1")
        await ocm_available(hub)

        serial = bench.certificate("c1").serial
        await until(lambda: bench.certificate("c1").serial != serial, what="the certificate is renewed without a person")
        await until(lambda: _add_on_secret(bench), what="the add-on has its kubeconfig")

        await hub.accept("c1", accepted=False)
        await until(lambda: _last_word(spoke, "hub.not_accepted"), what="the agent knows that it is denied")
        await hub.accept("c1")
        await until(lambda: _last_word(spoke, "hub.accepted"), what="the agent knows that it is accepted")

        await hub.remove(CLUSTER, "c1")
        hub.accepted.clear()

        async def made_again() -> bool:
            return (await hub.cluster("c1"))["spec"]["hubAcceptsClient"] is False

        await until(made_again, what="a deleted cluster registers again")
        assert not [asked for asked in hub.refused if asked.verb not in {"get", "list", "watch", "update", "create", "patch"}]


async def _last_word(spoke: Program, event: str) -> bool:
    """What the agent last said of its acceptance; a renewed certificate may have begun another session meanwhile."""
    told = [word for word in re.findall(r'"event": "(hub\.[a-z_]+)"', spoke.output) if "accepted" in word]
    return bool(told) and told[-1] == event


async def _add_on_secret(bench: Bench) -> bool:
    async with bench.kubernetes("c1") as client:
        path = "/api/v1/namespaces/open-cluster-management-agent-addon/secrets/logs-hub-kubeconfig"
        return set((await client.get(path))["data"]) >= {"kubeconfig", "tls.crt", "tls.key"}
