"""One agent as a process: its commands, what becomes of it on the hub, and what happens in its cluster."""

import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from machinery.client.rest import KubeClient, RestResource
from tests.e2e.processes import SHORT_LEASE, Bench, free_port, is_gone, until
from tests.programs import STDOUT, run, unread

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

NAMESPACE = "open-cluster-management-agent"


async def test_doctor_names_the_next_step_and_leave_takes_the_cluster_out_of_its_hub(bench: Bench) -> None:
    async def says(command: str, code: int, *sentences: str, flags: tuple[str, ...] = ()) -> str:
        files = (f"--bootstrap-kubeconfig={bench.folder / 'c1.bootstrap'}", f"--kubeconfig={bench.folder / 'c1.kubeconfig'}")
        ended = await run("spoke", command, *files, *flags, stderr=STDOUT)
        assert ended.returncode == code, ended.stdout
        if command in ("doctor", "status"):
            with unread() as output:
                assert (await run("spoke", command, *files, *flags, stdout=output, stderr=output)).returncode == code
        assert [sentence for sentence in sentences if sentence not in ended.stdout] == [], ended.stdout
        return ended.stdout

    hub = await bench.hub()
    agent = await bench.spoke("c1", None)
    await until(bench.requests, what="the agent has asked for its certificate")
    await says("doctor", 1, "ok   hub: it answers", "-> approve its request on the hub: hubctl get csr")
    await bench.hubctl("accept", "c1")
    await bench.hubctl("certificate", "approve", "c1")
    await bench.available("c1")
    await says("doctor", 0, 'of cluster "c1", until ')
    assert await hub.stop() == 0
    await says("doctor", 1, "FAIL connection: ", "-> check that the hub runs")
    await bench.hub("--auto-approve=*", name="again")
    await agent.says("session.opened", 2)

    status = json.loads(await says("status", 0, flags=("-o", "json")))
    assert (status["cluster"], status["process"]["state"], status["hubs"][0]["state"]) == ("c1", "works", "ready")
    await says("leave", 0, "has let go of this cluster")

    await until(lambda: is_gone(bench.cluster("c1")), what="the hub has forgotten the cluster")
    async with bench.kubernetes("c1") as client:
        secrets = await client.list(RestResource("", "v1", "secrets").path(namespace=NAMESPACE))
        assert [(each["metadata"]["name"], set(each["data"])) for each in secrets] == [("hub-kubeconfig-secret", {"left"})]
        assert not await client.list(RestResource("coordination.k8s.io", "v1", "leases").path(namespace=NAMESPACE))
    await says("status", 0, "stays away: this cluster has left its hubs")
    assert agent.running
    assert agent.output.count("session.opened") == 2

    assert await agent.stop() == 0
    agent.arguments = (*agent.arguments, "--rejoin", "--bootstrap-kubeconfig", str(await bench.bootstrap("c1")))
    await agent.start()
    await agent.says("session.opened", 3)
    await bench.available("c1")


QUICK = ("--default-lease-duration=4s", "--auto-approve=*")


async def in_state(port: int, state: str) -> dict[str, Any]:
    async def reached() -> dict[str, Any] | None:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/statusz") as answer:
            document = dict(json.loads(await answer.text()))
        return document if [hub["state"] for hub in document["hubs"]] == [state] else None

    found: dict[str, Any] = await until(reached, what=f"the agent says that it is {state}")
    return found


async def test_an_agent_acts_differently_on_each_and_never_restarts(bench: Bench) -> None:
    await bench.hub(*QUICK)
    port = free_port()
    spoke = await bench.spoke("c1", None, f"--health-listen=127.0.0.1:{port}")
    await bench.available("c1")
    process, first = spoke.pid, bench.certificate("c1").serial
    old_bootstrap = (bench.folder / "c1.bootstrap").read_bytes()

    said = await bench.hubctl("revoke", "cluster", "c1", "--reason", "KeyCompromise")
    assert "revoked: 3 certificates, 1 bootstrap credential" in said
    await in_state(port, "revoked")
    assert bench.certificate("c1").serial == first, "it is kept, and not shown"
    assert "the hub has revoked the stored credential" in spoke.output
    assert (bench.folder / "c1.bootstrap").read_bytes() == old_bootstrap
    fresh = await bench.bootstrap("c1")
    assert fresh.read_bytes() != old_bootstrap
    await until(lambda: bench.certificate("c1").serial != first, what="the agent has come back with a new bootstrap kubeconfig")
    await in_state(port, "ready")
    second = bench.certificate("c1").serial

    await bench.hubctl("delete", "cluster", "c1")
    await bench.bootstrap("c1")
    await until(lambda: bench.certificate("c1").serial != second, what="the deleted cluster has registered anew")
    assert "the hub has revoked" not in spoke.output.rpartition("KeyCompromise")[2]
    assert spoke.pid == process
    assert spoke.running


AUTO = ("--auto-approve=*", *SHORT_LEASE)
CLAIM_VERSION = "cluster.open-cluster-management.io/v1alpha1"
CLAIMS = f"/apis/{CLAIM_VERSION}/clusterclaims"


async def test_a_slow_api_server_that_refuses_secrets_delays_a_join_and_does_not_fail_it(bench: Bench) -> None:
    await bench.hub(*AUTO)
    kubeconfig = await bench.hollow("c1")
    await bench.fault("c1", "refuse-secret-writes")
    spoke = await bench.spoke("c1")
    await spoke.says("the fault `refuse-secret-writes`")
    assert await bench.requests() == []  # what is not written down first is not asked for
    await bench.fault("c1", "slow=100ms")
    await bench.available("c1")
    assert len(await bench.requests()) == 1
    assert spoke.running
    async with await KubeClient.from_file(kubeconfig) as cluster:
        secret = await cluster.get("/api/v1/namespaces/open-cluster-management-agent/secrets/hub-kubeconfig-secret")
    assert {"kubeconfig", "tls.crt", "tls.key", "cluster-name", "agent-name"} <= set(secret["data"])
    assert {file.name for file in (bench.folder / "c1.credentials").iterdir()} >= {"kubeconfig", "tls.crt", "tls.key"}


SETS = "/apis/cluster.open-cluster-management.io/v1beta2/managedclustersets"
ADDONS = "/apis/addon.open-cluster-management.io/v1beta1/namespaces/c1/managedclusteraddons"
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
SECRET = "/api/v1/namespaces/addons/secrets/logs-hub-kubeconfig"  # noqa: S105 - the path of a secret


async def test_claims_nodes_namespaces_and_a_token_for_an_add_on_reach_the_other_side(bench: Bench, tmp_path: Path) -> None:
    await bench.hub(*AUTO)
    kubeconfig = await bench.hollow("c1", "--nodes=3")
    await bench.spoke("c1", None, "--addon-kubeclient-registration-auth=token", "--addon-namespaces=addons")
    await bench.available("c1")
    async with await KubeClient.from_file(kubeconfig) as cluster, await KubeClient.from_file(bench.admin) as hub:
        claim = {"metadata": {"name": "region.example"}, "spec": {"value": "north"}}
        await cluster.create(CLAIMS, {"apiVersion": CLAIM_VERSION, "kind": "ClusterClaim", **claim})
        await cluster.delete("/api/v1/nodes/c1-node-2")
        await hub.patch(f"{SETS}/default", {"spec": {"managedNamespaces": [{"name": "team-a"}]}})
        addon = {"apiVersion": "addon.open-cluster-management.io/v1beta1", "kind": "ManagedClusterAddOn"}
        await hub.create(ADDONS, {**addon, "metadata": {"name": "logs"}, "spec": {}})
        status = {"namespace": "addons", "registrations": [{"type": "kubeClient", "kubeClient": {}}]}
        await hub.patch(f"{ADDONS}/logs/status", {"status": status})

        document = await bench.cluster_when("c1", applied, what="tells of its namespace")

        def is_changed(found: Mapping[str, Any]) -> bool:
            status = found["status"]
            return {"name": "region.example", "value": "north"} in status["clusterClaims"] and status["capacity"]["cpu"] == "16"

        await bench.cluster_when("c1", is_changed, what="tells the new claim and one node less")
        assert document["status"]["managedNamespaces"][0]["clusterSet"] == "default"
        labels = (await cluster.get("/api/v1/namespaces/team-a"))["metadata"]["labels"]
        assert [value for key, value in labels.items() if key.startswith("clusterset.open-cluster-management.io/")] == ["true"]

        held = (await until(lambda: cluster.get(SECRET), what="the add-on has its secret"))["data"]
        async with await KubeClient.from_file(unpacked(held, tmp_path)) as add_on:
            told = await add_on.create(WHO_AM_I, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
        assert told["status"]["userInfo"]["username"] == "system:serviceaccount:c1:logs-agent"

        async def told_of() -> bool:
            conditions = (await hub.get(f"{ADDONS}/logs"))["status"]["conditions"]
            return {"TokenInfrastructureReady", "TokenRefreshed"} <= {each["type"] for each in conditions}

        await until(told_of, what="both sides tell of the token")  # the agent once it has stored it


def applied(document: Any) -> bool:
    wanted = document.get("status", {}).get("managedNamespaces") or [{}]
    return any(each.get("reason") == "NamespaceApplied" for each in wanted[0].get("conditions", ()))


def unpacked(contents: dict[str, str], folder: Path) -> Path:
    """The secret as files, as an add-on mounts it."""
    for name, content in contents.items():
        (folder / f"mounted-{name}").write_bytes(b64decode(content))
    document = yaml.safe_load((folder / "mounted-kubeconfig").read_text())
    assert document["users"][0]["user"] == {"tokenFile": "token"}
    document["users"][0]["user"]["tokenFile"] = "mounted-token"
    (folder / "mounted-kubeconfig").write_text(yaml.safe_dump(document))
    return folder / "mounted-kubeconfig"
