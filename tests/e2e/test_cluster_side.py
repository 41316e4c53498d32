"""What happens on the cluster's side of an agent reaches the hub, and its troubles are outlived."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from machinery.kube.client import KubeClient
from spoke.domain.status import FAILURE_THRESHOLD, RECHECK
from tests.e2e.processes import Bench, is_available, until

pytestmark = pytest.mark.e2e

AUTO = ("--auto-approve=*", "--default-lease-duration=1s", "--beat-interval=300ms", "--flush-window=100ms")
AVAILABLE = "ManagedClusterConditionAvailable"
FAILED = (FAILURE_THRESHOLD + RECHECK).total_seconds()
CLAIMS = "/apis/cluster.open-cluster-management.io/v1alpha1/clusterclaims"


async def fault(bench: Bench, kubeconfig: Path, *faults: str) -> None:
    program = bench.program(f"fault-{len(bench.programs)}", "hollow", "fault", "--kubeconfig", str(kubeconfig), *faults)
    await program.start()
    assert await program.ended() == 0


async def test_a_change_of_claims_and_nodes_is_on_the_hub_within_seconds(bench: Bench) -> None:
    await bench.hub(*AUTO)
    kubeconfig = await bench.hollow("c1", "--nodes=3")
    await bench.spoke("c1")
    await bench.available("c1")
    async with await KubeClient.from_file(kubeconfig) as cluster:
        claim = {"metadata": {"name": "region.example"}, "spec": {"value": "north"}}
        version = "cluster.open-cluster-management.io/v1alpha1"
        await cluster.create(CLAIMS, {"apiVersion": version, "kind": "ClusterClaim", **claim})
        await cluster.delete("/api/v1/nodes/c1-node-2")
    document = await bench.cluster_when(
        "c1",
        lambda found: (
            {"name": "region.example", "value": "north"} in found["status"].get("clusterClaims", [])
            and found["status"]["capacity"]["cpu"] == "16"
        ),
        what="tells the new claim and one node less",
        within=8,
    )
    assert document["status"]["version"]["kubernetes"] == "v1.34.2"


async def test_an_agent_that_may_not_write_its_secrets_joins_as_soon_as_it_may(bench: Bench) -> None:
    await bench.hub(*AUTO)
    kubeconfig = await bench.hollow("c1")
    await fault(bench, kubeconfig, "refuse-secret-writes")
    spoke = await bench.spoke("c1")

    async def told() -> bool:
        return "told to refuse writing secrets" in spoke.output

    await until(told, what="the agent says what it may not")
    assert await bench.requests() == []  # what is not written down first is not asked for
    await fault(bench, kubeconfig, "none")
    await bench.available("c1", within=40)
    assert len(await bench.requests()) == 1


async def test_a_slow_api_server_delays_a_join_and_does_not_fail_it(bench: Bench) -> None:
    await bench.hub(*AUTO)
    kubeconfig = await bench.hollow("c1")
    await fault(bench, kubeconfig, "slow=400ms")
    spoke = await bench.spoke("c1")
    await bench.available("c1", within=40)
    assert spoke.running
    async with await KubeClient.from_file(kubeconfig) as cluster:
        secret = await cluster.get("/api/v1/namespaces/open-cluster-management-agent/secrets/hub-kubeconfig-secret")
    assert {"kubeconfig", "tls.crt", "tls.key", "cluster-name", "agent-name"} <= set(secret["data"])
    assert {file.name for file in (bench.folder / "c1.credentials").iterdir()} >= {"kubeconfig", "tls.crt", "tls.key"}


def reason(document: Mapping[str, Any]) -> str:
    """Why it is not Available; empty: it is, or nobody knows."""
    (told,) = [entry for entry in document["status"]["conditions"] if entry["type"] == AVAILABLE]
    return str(told["reason"]) if told["status"] == "False" else ""


@pytest.mark.timeout(300)
async def test_api_servers_that_are_ill_or_gone_make_their_clusters_unavailable_and_their_agents_go_on(bench: Bench) -> None:
    """Both at once: an API server is believed to have failed after 20 s."""
    await bench.hub(*AUTO)
    agents = [await bench.spoke(name, None, "--cluster-healthcheck-period=1s") for name in ("ill", "gone")]
    for name in ("ill", "gone"):
        await bench.available(name)
    await fault(bench, bench.folder / "ill.kubeconfig", "not-live")
    await next(program for program in bench.programs if program.name == "hollow-gone").kill()
    for name in ("ill", "gone"):
        document = await bench.cluster_when(name, lambda found: bool(reason(found)), what="is not Available", within=5 * FAILED)
        assert reason(document) == "ManagedClusterKubeAPIServerUnavailable"
    await fault(bench, bench.folder / "ill.kubeconfig", "none")
    await bench.available("ill")
    assert not is_available(await bench.cluster("gone"))
    assert all(agent.running for agent in agents)
