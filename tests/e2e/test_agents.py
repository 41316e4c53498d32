"""One agent as a process: its commands, what becomes of it on the hub, and what happens in its cluster."""

import asyncio
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from machinery.kube.client import KubeClient, Resource
from tests.e2e.hubs import now
from tests.e2e.processes import SHORT_LEASE, Bench, Program, free_port, is_available, is_gone, recorded, until
from tests.programs import STDOUT, run
from tests.trials import soak_only

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

NAMESPACE = "open-cluster-management-agent"


async def test_doctor_names_the_next_step_and_leave_takes_the_cluster_out_of_its_hub(bench: Bench) -> None:
    port = free_port()
    listen = f"--health-listen=127.0.0.1:{port}"

    async def says(command: str, code: int, *sentences: str, flags: tuple[str, ...] = (listen,)) -> str:
        files = (f"--bootstrap-kubeconfig={bench.folder / 'c1.bootstrap'}", f"--kubeconfig={bench.folder / 'c1.kubeconfig'}")
        ended = await run("spoke", command, *files, *flags, stderr=STDOUT)
        assert ended.returncode == code, ended.stdout
        assert [sentence for sentence in sentences if sentence not in ended.stdout] == [], ended.stdout
        return ended.stdout

    hub = await bench.hub()
    agent = await bench.spoke("c1", None, listen)
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

    status = json.loads(await says("status", 0, flags=(listen, "-o", "json")))
    assert (status["cluster"], status["process"]["state"], status["hubs"][0]["state"]) == ("c1", "works", "ready")
    await says("leave", 0, "has let go of this cluster", flags=())

    await until(lambda: is_gone(bench.cluster("c1")), what="the hub has forgotten the cluster")
    async with bench.kubernetes("c1") as client:
        secrets = await client.list(Resource("", "v1", "secrets").path(namespace=NAMESPACE))
        assert [(each["metadata"]["name"], set(each["data"])) for each in secrets] == [("hub-kubeconfig-secret", {"left"})]
        assert not await client.list(Resource("coordination.k8s.io", "v1", "leases").path(namespace=NAMESPACE))
    await says("status", 0, "stays away: this cluster has left its hubs")
    assert agent.running
    assert agent.output.count("session.opened") == 2

    assert await agent.stop() == 0
    agent.arguments = (*agent.arguments, "--rejoin", "--bootstrap-kubeconfig", str(await bench.bootstrap("c1")))
    await agent.start()
    await agent.says("session.opened", 3)
    await bench.available("c1")


QUICK = ("--default-lease-duration=4s", "--auto-approve=*")


async def statusz(port: int) -> dict[str, Any]:
    """What `spoke status` asks the running agent."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/statusz") as answer:
        return dict(json.loads(await answer.text()))


async def in_state(port: int, state: str) -> dict[str, Any]:
    async def reached() -> dict[str, Any] | None:
        document = await statusz(port)
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

    await bench.hubctl("deny", "c1")
    document = await in_state(port, "denied")
    assert "hubctl accept c1" in json.dumps(document)
    await bench.hubctl("accept", "c1")
    await in_state(port, "ready")
    assert bench.certificate("c1").serial == first, "a denied agent keeps its credential, and comes back with it"

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


async def expired(bench: Bench, *clusters: str) -> Sequence[Program]:
    """Spokes that were killed, whose certificates have expired since, and whose bootstrap kubeconfigs are gone."""
    spokes = await asyncio.gather(*(bench.spoke(cluster) for cluster in clusters))
    await asyncio.gather(*(bench.available(cluster) for cluster in clusters))
    for cluster, spoke in zip(clusters, spokes, strict=True):
        await spoke.kill()
        (bench.folder / f"{cluster}.bootstrap").unlink()

    def all_expired() -> bool:
        ((newest,),) = bench.stored("SELECT max(not_after) FROM certificates WHERE purpose = 'agent'")
        return now() > int(newest)

    await until(all_expired, what="the certificates have expired")
    return spokes


def issued(bench: Bench, cluster: str) -> int:
    return recorded(bench.data / "hub.db", "agent")[cluster]


async def back(bench: Bench, spoke: Program, cluster: str, before: int) -> None:
    """The agent has one certificate more, and a session with it."""

    async def renewed() -> bool:
        session = "session.opened" in spoke.output.rpartition("spoke.starting")[2]
        return issued(bench, cluster) == before + 1 and session

    await until(renewed, what=f"the agent of {cluster} is back")
    await bench.available(cluster)


async def test_agents_that_were_off_for_longer_than_their_certificate_come_back_unless_they_are_denied(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*", "--default-lease-duration=2s", "--agent-lifetime=6s")
    spoke, denied, asked = await expired(bench, "c1", "denied", "asked")
    before = {cluster: issued(bench, cluster) for cluster in ("c1", "denied", "asked")}
    await bench.hubctl("deny", "denied")
    assert await hub.stop() == 0

    hub = await bench.hub("--default-lease-duration=2s")  # certificates live again, and no rule approves anything
    await spoke.start()
    await back(bench, spoke, "c1", before["c1"])
    approved = [entry for request in await bench.requests() for entry in request["status"]["conditions"]]
    assert [entry["reason"] for entry in approved].count("RecoveredByItsKey") == 1

    await denied.start()
    await denied.says("the recovery certificate does not bring this agent back")
    await denied.says("hubctl accept denied")
    assert denied.running
    await bench.hubctl("accept", "denied")
    await back(bench, denied, "denied", before["denied"])
    assert await hub.stop() == 0

    await bench.hub("--default-lease-duration=2s", "--recovery=manual")
    await asked.start()

    async def waits() -> str:
        pending = [request for request in await bench.requests() if not request["status"].get("conditions")]
        return pending[0]["metadata"]["name"] if pending else ""

    name = await until(waits, what="the request of the agent waits")
    await asked.kill()
    await asked.start()
    await bench.hubctl("certificate", "approve", name)
    await back(bench, asked, "asked", before["asked"])


AUTO = ("--auto-approve=*", *SHORT_LEASE)
AVAILABLE = "ManagedClusterConditionAvailable"
CLAIMS = "/apis/cluster.open-cluster-management.io/v1alpha1/clusterclaims"


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
    )
    assert document["status"]["version"]["kubernetes"] == "v1.34.2"


async def test_a_slow_api_server_that_refuses_secrets_delays_a_join_and_does_not_fail_it(bench: Bench) -> None:
    await bench.hub(*AUTO)
    kubeconfig = await bench.hollow("c1")
    await bench.fault("c1", "refuse-secret-writes")
    spoke = await bench.spoke("c1")
    await spoke.says("told to refuse writing secrets")
    assert await bench.requests() == []  # what is not written down first is not asked for
    await bench.fault("c1", "slow=400ms")
    await bench.available("c1")
    assert len(await bench.requests()) == 1
    assert spoke.running
    async with await KubeClient.from_file(kubeconfig) as cluster:
        secret = await cluster.get("/api/v1/namespaces/open-cluster-management-agent/secrets/hub-kubeconfig-secret")
    assert {"kubeconfig", "tls.crt", "tls.key", "cluster-name", "agent-name"} <= set(secret["data"])
    assert {file.name for file in (bench.folder / "c1.credentials").iterdir()} >= {"kubeconfig", "tls.crt", "tls.key"}


def reason(document: Mapping[str, Any]) -> str:
    """Why it is not Available; empty: it is, or nobody knows."""
    (told,) = [entry for entry in document["status"]["conditions"] if entry["type"] == AVAILABLE]
    return str(told["reason"]) if told["status"] == "False" else ""


@soak_only(1)  # in `make test`: test_rules.py in tests/unit/spoke
@pytest.mark.timeout(300)
async def test_api_servers_that_are_ill_or_gone_make_their_clusters_unavailable_and_their_agents_go_on(bench: Bench) -> None:
    """Both at once: an API server is believed to have failed after 20 s."""
    await bench.hub(*AUTO)
    flag = "--cluster-healthcheck-period=1s"
    agents = await asyncio.gather(*(bench.spoke(name, None, flag) for name in ("ill", "gone")))
    await asyncio.gather(bench.available("ill"), bench.available("gone"))
    await bench.fault("ill", "not-live")
    await next(program for program in bench.programs if program.name == "hollow-gone").kill()
    for name in ("ill", "gone"):
        document = await bench.cluster_when(name, lambda found: bool(reason(found)), what="is not Available")
        assert reason(document) == "ManagedClusterKubeAPIServerUnavailable"
    await bench.fault("ill", "none")
    await bench.available("ill")
    assert not is_available(await bench.cluster("gone"))
    assert all(agent.running for agent in agents)


SETS = "/apis/cluster.open-cluster-management.io/v1beta2/managedclustersets"
ADDONS = "/apis/addon.open-cluster-management.io/v1beta1/namespaces/c1/managedclusteraddons"
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
SECRET = "/api/v1/namespaces/addons/secrets/logs-hub-kubeconfig"  # noqa: S105 - the path of a secret


async def test_a_set_gets_its_namespace_and_an_add_on_a_token_that_its_hub_takes(bench: Bench, tmp_path: Path) -> None:
    await bench.hub(*AUTO)
    kubeconfig = await bench.hollow("c1")
    await bench.spoke("c1", None, "--addon-kubeclient-registration-auth=token")
    await bench.available("c1")
    async with await KubeClient.from_file(kubeconfig) as cluster, await KubeClient.from_file(bench.admin) as hub:
        await hub.patch(f"{SETS}/default", {"spec": {"managedNamespaces": [{"name": "team-a"}]}})
        await cluster.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "addons"}})
        addon = {"apiVersion": "addon.open-cluster-management.io/v1beta1", "kind": "ManagedClusterAddOn"}
        await hub.create(ADDONS, {**addon, "metadata": {"name": "logs"}, "spec": {}})
        status = {"namespace": "addons", "registrations": [{"type": "kubeClient", "kubeClient": {}}]}
        await hub.patch(f"{ADDONS}/logs/status", {"status": status})

        document = await bench.cluster_when("c1", applied, what="tells of its namespace")
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
