"""An agent that speaks nothing but the Kubernetes API, as processes: joins, waits, reports, renews, survives, is sent away."""

import socket
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from machinery.kube.client import KubeClient
from tests.e2e.processes import CLUSTERS, Bench, Program, recorded, status_of, until
from tests.e2e.test_spoke import SHORT_LEASE, certificate, fault, killed_again_and_again, kubernetes, probe, says, says_again
from tests.fakes.connect_proxy import connect_proxy
from tests.trials import repeated

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

JOINED, AVAILABLE = "ManagedClusterJoined", "ManagedClusterConditionAvailable"


async def token_bootstrap(bench: Bench, cluster: str) -> Path:
    file = bench.folder / f"{cluster}.bootstrap"
    command = ("create", "bootstrap-kubeconfig", "--cluster", cluster, "--token", "--allow-loopback", "-o", str(file))
    await bench.hubctl(*command)
    return file


async def prepared(bench: Bench, cluster: str, *flags: str) -> Program:
    """A spoke with a token alone, not started yet."""
    kubeconfig = await bench.hollow(cluster)
    return bench.program(
        f"spoke-{cluster}",
        *("spoke", "run", "--cluster-name", cluster, "--kubeconfig", str(kubeconfig)),
        *("--bootstrap-kubeconfig", str(await token_bootstrap(bench, cluster))),
        *("--hub-kubeconfig-dir", str(bench.folder / f"{cluster}.credentials"), *flags),
    )


async def shorten_lease(bench: Bench) -> None:
    async with await KubeClient.from_file(bench.admin) as client:
        await client.patch(f"{CLUSTERS}/c1", {"spec": {"leaseDurationSeconds": 1}})


async def test_a_token_and_the_https_door_are_all_it_takes_to_join(bench: Bench) -> None:
    await bench.hub(*SHORT_LEASE)
    spoke = await prepared(bench, "c1")
    await spoke.start()
    await says(spoke, "request.waiting")
    (request,) = await bench.requests()
    assert status_of(await bench.cluster("c1"), JOINED) is None
    await bench.hubctl("certificate", "approve", request["metadata"]["name"])
    await says(spoke, "hub.not_accepted")
    assert (await probe(spoke, "/readyz"))[1].find("hubctl accept") > 0
    await bench.hubctl("accept", "c1")
    document = await bench.available("c1")
    assert status_of(document, JOINED) == "True"
    assert document["status"]["capacity"]["nodes"] == str(len(await nodes(bench)))
    assert {claim["name"] for claim in document["status"]["clusterClaims"]} >= {"id.k8s.io"}
    shown = (await bench.hubctl("get", "clusters", "c1")).lower()
    assert "true" in shown
    assert connections(spoke.pid, bench.grpc_port) == 0, "not one connection to the gRPC door"
    await until(lambda: _ready(spoke), what="the agent is ready")


async def _ready(spoke: Program) -> bool:
    return (await probe(spoke, "/readyz"))[0] == 200


async def nodes(bench: Bench) -> Any:
    async with kubernetes(bench, "c1") as client:
        return await client.list("/api/v1/nodes")


def connections(pid: int, port: int) -> int:
    """Open TCP connections of a process to a local port."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(link.readlink().name)
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    wanted = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), 'little'):08X}:{port:04X}"
    return sum(f"socket:[{line[9]}]" in inodes for line in lines if line[2] == wanted)


async def test_a_short_certificate_is_renewed_over_the_kubernetes_api_without_a_gap(bench: Bench) -> None:
    await bench.hub("--auto-approve=*", "--agent-lifetime=8s", *SHORT_LEASE)
    spoke = await prepared(bench, "c1")
    await spoke.start()
    await bench.available("c1")
    serials = {certificate(bench, "c1").serial}

    async def rotated() -> bool:
        serials.add(certificate(bench, "c1").serial)
        assert status_of(await bench.cluster("c1"), AVAILABLE) == "True"
        return len(serials) == 4

    await until(rotated, what="the certificate was replaced three times", within=40)
    assert "registration.begins" not in spoke.output.split("session.opened", 1)[1]


async def test_a_hub_that_was_killed_is_found_again_and_so_is_the_hub_by_a_killed_agent(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*", *SHORT_LEASE)
    spoke = await prepared(bench, "c1")
    await spoke.start()
    await bench.available("c1")
    await shorten_lease(bench)
    await hub.kill()
    await says(spoke, "reconnecting")
    assert (await probe(spoke, "/livez"))[0] == 200
    await hub.start()
    await says_again(spoke, "session.opened", 2, within=40)
    await bench.available("c1")
    await spoke.kill()
    await bench.cluster_when("c1", lambda one: status_of(one, AVAILABLE) == "Unknown", what="is silent", within=40)
    await spoke.start()
    await bench.available("c1", within=40)
    assert len(await bench.requests()) == 1


@repeated(1, 10)
async def test_an_agent_killed_again_and_again_while_it_joins_makes_one_request(bench: Bench, trial: int) -> None:
    await bench.hub("--auto-approve=*")
    spoke = await prepared(bench, "c1")
    await fault(bench, "c1", "slow=100ms")
    await killed_again_and_again(spoke, Random(trial), longest=2)
    await bench.available("c1", within=40)
    assert len(await bench.requests()) == 1
    assert recorded(bench.data / "hub.db", "agent") == {"c1": 1}
    async with kubernetes(bench, "c1") as client:
        secrets = await client.list("/api/v1/namespaces/open-cluster-management-agent/secrets")
    assert [secret["metadata"]["name"][:22] for secret in secrets] == ["hub-kubeconfig-secret", "hub-kubeconfig-secret-"]
    assert not [secret for secret in secrets if "pending.key" in secret["data"]]


async def test_a_denied_request_is_made_anew_a_denied_cluster_waits_and_a_deleted_one_registers_again(bench: Bench) -> None:
    await bench.hub(*SHORT_LEASE)
    spoke = await prepared(bench, "c1")
    await spoke.start()
    await says(spoke, "request.waiting")
    (first,) = await bench.requests()
    await bench.hubctl("certificate", "deny", first["metadata"]["name"])
    await says(spoke, "was denied")
    second = await until(lambda: _other_request(bench, first), what="a new request with a new key", within=40)
    await bench.hubctl("certificate", "approve", second["metadata"]["name"])
    await bench.hubctl("accept", "c1")
    await bench.available("c1")
    await bench.hubctl("deny", "c1")
    await says(spoke, "hub.not_accepted")
    await says(spoke, "lease.stopped")
    await bench.hubctl("accept", "c1")
    await says_again(spoke, "lease.started", 2)
    before = await bench.available("c1", within=40)
    await bench.hubctl("delete", "cluster", "c1")

    async def again() -> bool:
        return bool((await bench.cluster("c1"))["metadata"]["uid"] != before["metadata"]["uid"])

    await until(again, what="a new ManagedCluster", within=40)


async def _other_request(bench: Bench, first: Any) -> Any:
    others = [one for one in await bench.requests() if one["metadata"]["name"] != first["metadata"]["name"]]
    assert all(one["spec"]["request"] != first["spec"]["request"] for one in others)
    return others[0] if others else None


@pytest.mark.parametrize("driver", ["grpc", "csr"])
async def test_an_agent_joins_through_a_proxy_that_wants_a_password_and_tells_nobody(bench: Bench, driver: str) -> None:
    await bench.hub("--auto-approve=*", *SHORT_LEASE)
    async with connect_proxy("agent:hush-hush") as proxy:
        kubeconfig, bootstrap = await bench.hollow("c1"), await bench.bootstrap("c1")  # which both drivers can use
        files = (f"--kubeconfig={kubeconfig}", f"--bootstrap-kubeconfig={bootstrap}", f"--registration-driver={driver}")
        spoke = bench.program("spoke-c1", "spoke", "run", "--cluster-name=c1", *files)
        spoke.environment["SPOKE_PROXY_URL"] = f"http://agent:hush-hush@127.0.0.1:{proxy.port}"
        await spoke.start()
        await bench.available("c1")
        port = bench.grpc_port if driver == "grpc" else bench.https_port
        assert set(proxy.tunnels) == {f"127.0.0.1:{port}"}
        assert connections(spoke.pid, port) == 0, "nothing goes past the proxy"
        before = len(proxy.tunnels)
        proxy.cut()

        async def found_again() -> bool:
            return len(proxy.tunnels) > before

        await until(found_again, what="the agent is back, through the proxy", within=40)
        await bench.available("c1")
    await says(spoke, f"through the proxy http://127.0.0.1:{proxy.port}", within=40)
    assert "hush" not in spoke.output
