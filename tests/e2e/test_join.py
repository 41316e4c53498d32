"""A cluster joins: by hand, by a pattern of names, by manifests."""

import asyncio
import signal
import stat
from base64 import b64decode
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from hubctl.commands.clusters.join import DEFAULT_NAMESPACE, KEY, SECRET
from machinery.client.rest import KubeClient
from tests.e2e.hubs import now
from tests.e2e.processes import AVAILABLE, CLUSTERS, SHORT_LEASE, Bench, is_available, status_of, until
from tests.programs import command

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

GRACE = 5.0
ACCEPTED = "HubAcceptedManagedCluster"
JOINED = "ManagedClusterJoined"


async def request_of(bench: Bench, cluster: str) -> str:
    """Name of the cluster's only certificate request, once it is at the hub."""

    async def found() -> str | None:
        label = "open-cluster-management.io/cluster-name"
        names = [each["metadata"]["name"] for each in await bench.requests() if each["metadata"]["labels"][label] == cluster]
        assert len(names) <= 1
        return names[0] if names else None

    return str(await until(found, what=f"the certificate request of {cluster} is at the hub"))


async def session_open(bench: Bench, name: str) -> None:
    async def open_now() -> bool:
        line = next(line for line in (await bench.hubctl("get", "clusters")).splitlines() if line.startswith(name))
        return "(no session)" not in line

    await until(open_now, what=f"cluster {name} has a session")


async def test_clusters_that_match_a_rule_join_at_once_and_can_be_denied_and_accepted_again(bench: Bench) -> None:
    hub, names = await bench.hub("--auto-approve=edge-*"), ("edge-1", "edge-2", "edge-3")
    spokes = await asyncio.gather(*(bench.spoke(name) for name in names))
    clusters = {name: await bench.available(name) for name in names}
    assert all(spoke.running for spoke in spokes)
    assert len({await request_of(bench, name) for name in names}) == len(await bench.requests()) == len(names)
    cluster = clusters["edge-1"]
    assert cluster["spec"]["hubAcceptsClient"] is True
    assert "open-cluster-management.io/automatically-accepted-on" in cluster["metadata"]["annotations"]
    assert {kind: status_of(cluster, kind) for kind in (ACCEPTED, JOINED, AVAILABLE)} == {
        ACCEPTED: "True",
        JOINED: "True",
        AVAILABLE: "True",
    }
    assert cluster["status"]["version"]["kubernetes"]
    assert cluster["status"]["capacity"]["nodes"] == "5"
    for request in await bench.requests():
        assert request["status"]["conditions"][0]["reason"] == "AutoApprovedByHubCSRApprovingController"

    await bench.hubctl("deny", "edge-1")
    denied = await bench.cluster_when("edge-1", lambda one: status_of(one, ACCEPTED) == "False", what="reads denied")
    assert denied["spec"]["hubAcceptsClient"] is False
    await bench.hubctl("accept", "edge-1")
    await bench.cluster_when("edge-1", lambda one: status_of(one, ACCEPTED) == "True", what="is accepted again")
    await bench.available("edge-1")

    async with await KubeClient.from_file(bench.admin) as client:
        query = {"resourceVersion": (await client.get(CLUSTERS))["metadata"]["resourceVersion"]}
        async with client.watch(CLUSTERS, query, within=timedelta(minutes=1)):
            assert await hub.stop() == 0
    assert "did not finish in time" not in hub.output, "neither an open watch nor open sessions hold up a stop"


async def test_by_hand_both_decisions_are_needed_in_any_order_and_an_agent_resumes_its_request(bench: Bench) -> None:
    await bench.hub()
    first, second = await asyncio.gather(bench.spoke("c1"), bench.spoke("c2"))
    requests = [await request_of(bench, name) for name in ("c1", "c2")]
    await first.kill()
    assert await second.stop() == 0
    await asyncio.gather(first.start(), second.start())  # while they wait
    decisions = {name: [("accept", name), ("certificate", "approve", name)] for name in ("c1", "c2")}
    decisions["c2"].reverse()
    for name, (one, other) in decisions.items():
        await bench.hubctl(*one)
        assert not is_available(await bench.cluster(name))
        await bench.hubctl(*other)
        assert status_of(await bench.available(name), ACCEPTED) == "True"
        assert name in await bench.hubctl("get", "clusters")
    assert await second.stop(signal.SIGINT) == 0
    await second.start()
    await session_open(bench, "c2")
    assert [await request_of(bench, name) for name in ("c1", "c2")] == requests


async def test_killed_agent_reads_unknown_after_its_grace_and_agents_find_a_hub_that_was_restarted(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*", *SHORT_LEASE)
    spoke = await bench.spoke("c1")
    before = await bench.available("c1")
    await spoke.kill()
    cluster = await bench.cluster_when("c1", lambda one: status_of(one, AVAILABLE) == "Unknown", what="reads Unknown")
    seen = now()
    ((beat,),) = bench.stored("SELECT at FROM heartbeats")
    assert seen - beat >= GRACE * 1e6, "and not before"
    condition = next(each for each in cluster["status"]["conditions"] if each["type"] == AVAILABLE)
    assert condition["reason"] == "ManagedClusterLeaseUpdateStopped"
    assert condition["message"] == "Registration agent stopped updating its lease."
    await spoke.start()
    await bench.available("c1")

    for ending in (signal.SIGTERM, signal.SIGKILL):
        assert await hub.stop(ending) == (0 if ending is signal.SIGTERM else -signal.SIGKILL)
        await hub.start()
        await bench.ready(hub)
        await session_open(bench, "c1")
        after = await bench.available("c1")
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert spoke.running
        assert len(await bench.requests()) == 1


async def invitation_in(kubeconfig: Path, namespace: str, into: Path) -> Path:
    """The bootstrap kubeconfig as the agent's pod finds it mounted."""
    async with await KubeClient.from_file(kubeconfig) as client:
        secret = await client.get(f"/api/v1/namespaces/{namespace}/secrets/{SECRET}")
        (deployment,) = (await client.get(f"/apis/apps/v1/namespaces/{namespace}/deployments"))["items"]
    (mounted,) = [each for each in deployment["spec"]["template"]["spec"]["volumes"] if each["name"] == "bootstrap"]
    assert mounted["secret"]["secretName"] == SECRET
    await asyncio.to_thread(into.write_bytes, b64decode(secret["data"][KEY]))
    return into


@pytest.mark.kubectl
async def test_a_cluster_joins_by_what_is_applied_to_it_or_printed_for_kubectl(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    there = await bench.hollow("edge3")
    await bench.programs[-1].kill()
    said = await bench.hubctl("join", "edge3", "--apply", str(there), "--allow-loopback", code=5)
    assert f"the cluster that {there} leads to" in said
    credentials = "/apis/hub.open-cluster-management.io/v1alpha1/bootstrapcredentials"
    assert (await bench.get(credentials))["items"] == [], "none is made for a cluster that does not answer"

    there = await bench.hollow("edge1")
    said = await bench.hubctl("join", "edge1", "--apply", str(there), "--label", "region=eu", "--allow-loopback")
    assert 'deployment "muster-spoke" created' in said
    assert "PRIVATE KEY" not in said
    invitation = await invitation_in(there, DEFAULT_NAMESPACE, bench.folder / "mounted")
    await bench.spoke("edge1", invitation)
    assert (await bench.available("edge1"))["metadata"]["labels"]["region"] == "eu"
    again = await bench.hubctl("join", "edge1", "--apply", str(there), "--allow-loopback")
    assert 'deployment "muster-spoke" unchanged' in again
    assert f'secret "{SECRET}" configured' in again, "a new credential for an agent that is to come again"

    there, file = await bench.hollow("edge2"), bench.folder / "edge2.yaml"
    await bench.hubctl("join", "edge2", "-n", "agents", "--image", "example.com/spoke:1", "-o", str(file), "--allow-loopback")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    objects = list(yaml.safe_load_all(file.read_text()))
    namespaces = {each["metadata"].get("namespace", "agents") for each in objects}
    assert namespaces == {"agents", "open-cluster-management-agent-addon"}
    ended = await command("kubectl", "--kubeconfig", str(there), "apply", "-f", str(file))
    assert (ended.returncode, ended.stdout.count(" created")) == (0, len(objects)), ended.stderr
    async with await KubeClient.from_file(there) as client:
        deployment = await client.get("/apis/apps/v1/namespaces/agents/deployments/muster-spoke")
    assert [each["image"] for each in deployment["spec"]["template"]["spec"]["containers"]] == ["example.com/spoke:1"]
    await bench.spoke("edge2", await invitation_in(there, "agents", bench.folder / "mounted"))
    await bench.available("edge2")
