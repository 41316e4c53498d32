"""`spoke status` and `spoke leave` beside an agent that runs: the hub lets go, the cluster is clean, nobody registers anew."""

import asyncio
import json
import sys

from machinery.errors import NotFoundError
from machinery.kube.client import Resource
from tests.e2e.processes import Bench, free_port, until
from tests.e2e.test_spoke import kubernetes, says_again

NAMESPACE = "open-cluster-management-agent"


async def spoke(bench: Bench, command: str, *flags: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "spoke", command, "--bootstrap-kubeconfig", str(bench.folder / "c1.bootstrap")),
        *("--kubeconfig", str(bench.folder / "c1.kubeconfig"), *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode()


async def test_a_cluster_leaves_while_its_agent_runs_and_comes_back_when_it_is_asked(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    port = free_port()
    agent = await bench.spoke("c1", None, f"--health-listen=127.0.0.1:{port}")
    await bench.available("c1")
    code, said = await spoke(bench, "status", "-o", "json", f"--health-listen=127.0.0.1:{port}")
    assert code == 0, said
    told = json.loads(said)
    assert (told["cluster"], told["process"]["state"], told["hubs"][0]["state"]) == ("c1", "works", "ready")
    code, said = await spoke(bench, "leave")
    assert code == 0, said
    assert "has let go of this cluster" in said

    async def gone() -> bool:
        try:
            await bench.cluster("c1")
        except NotFoundError:
            return True
        return False

    await until(gone, what="the hub has forgotten the cluster")
    async with kubernetes(bench, "c1") as client:
        secrets = await client.list(Resource("", "v1", "secrets").path(namespace=NAMESPACE))
        assert [(each["metadata"]["name"], set(each["data"])) for each in secrets] == [("hub-kubeconfig-secret", {"left"})]
        assert not await client.list(Resource("coordination.k8s.io", "v1", "leases").path(namespace=NAMESPACE))
    code, said = await spoke(bench, "status", f"--health-listen=127.0.0.1:{port}")
    assert code == 0, said
    assert "stays away: this cluster has left its hubs" in said
    assert agent.running
    assert agent.output.count("session.opened") == 1

    assert await agent.stop() == 0
    agent.arguments = (*agent.arguments, "--rejoin", "--bootstrap-kubeconfig", str(await bench.bootstrap("c1")))
    await agent.start()
    await says_again(agent, "session.opened", 2)
    await bench.available("c1")
