"""A cluster joins by hand, by a pattern, by manifests; and its agent through kills, wrong clocks and an absent hub."""

import asyncio
import re
import signal
import stat
from base64 import b64decode
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from hubctl.commands.clusters.join import DEFAULT_NAMESPACE, KEY, SECRET
from machinery.client.rest import KubeClient
from machinery.runtime.clock import SystemClock
from tests.e2e.hubs import now
from tests.e2e.processes import AVAILABLE, CLUSTERS, SHORT_LEASE, Bench, Program, is_available, status_of, until
from tests.fakes.hub import MemoryHub
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
    assert [status_of(cluster, kind) for kind in (ACCEPTED, JOINED, AVAILABLE)] == ["True"] * 3
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
    decisions = {name: [("accept", name, "--skip-approve"), ("certificate", "approve", name)] for name in ("c1", "c2")}
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
    hub, spoke = await bench.hub("--auto-approve=*", *SHORT_LEASE), await bench.spoke("c1")
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
        assert (await bench.available("c1"))["metadata"]["uid"] == before["metadata"]["uid"]
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
    answer = await bench.hubctl("join", "edge3", "--apply", str(there), "--allow-loopback", code=5)
    assert f"the cluster that {there} leads to" in answer
    credentials = "/apis/hub.open-cluster-management.io/v1alpha1/bootstrapcredentials"
    assert (await bench.get(credentials))["items"] == [], "none is made for a cluster that does not answer"

    there = await bench.hollow("edge1")
    answer = await bench.hubctl("join", "edge1", "--apply", str(there), "--label", "region=eu", "--allow-loopback")
    assert 'deployment "muster-spoke" created' in answer
    assert "PRIVATE KEY" not in answer
    await bench.spoke("edge1", await invitation_in(there, DEFAULT_NAMESPACE, bench.folder / "mounted"))
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


FAKETIME = "libfaketimeMT.so.1"


def faked(spoke: Program, shift: str, folder: Path) -> Path:
    """Makes the program live in another time; the returned file can be rewritten while it runs."""
    file = folder / "now"
    file.write_text(shift)
    spoke.environment.update(
        LD_PRELOAD=str(next(Path("/usr/lib").glob(f"*/faketime/{FAKETIME}"))),
        FAKETIME_TIMESTAMP_FILE=str(file),
        FAKETIME_NO_CACHE="1",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
    )
    return file


async def is_ready(spoke: Program, status: int = 200) -> bool:
    return (await spoke.probe("/readyz"))[0] == status


@pytest.mark.faketime
async def test_a_clock_a_day_ahead_joins_stays_available_and_joins_again_after_a_restart(bench: Bench) -> None:
    await bench.hub("--auto-approve=*", "--agent-lifetime=2h", *SHORT_LEASE)
    spoke = await bench.prepared("c1")
    faked(spoke, "+1d", bench.folder)
    await spoke.start()
    await bench.available("c1")
    for _ in range(2):  # the hub counts its beats, and by its own clock
        began = now()
        await until(lambda: bench.stored("SELECT at FROM heartbeats")[0][0] > began, what="the agent beats")  # noqa: B023
    assert status_of(await bench.cluster("c1"), AVAILABLE) == "True"
    await spoke.stop()
    await spoke.start()
    await spoke.says("session.opened", 2)
    assert len(await bench.requests()) == 1


@pytest.mark.faketime
async def test_a_clock_far_behind_is_reported_with_both_times_and_joins_once_it_is_right(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    spoke = await bench.prepared("c1")
    cluster = bench.folder / "c1.kubeconfig"  # its API server has been there for longer than the hub
    cluster.write_text(re.sub("certificate-authority-data: .*", "insecure-skip-tls-verify: true", cluster.read_text()))
    time = faked(spoke, "-4d", bench.folder)
    await spoke.start()
    await spoke.says("the clock of this machine is behind: it says 20")
    time.write_text("+0")
    await bench.available("c1")


async def test_wrong_settings_and_an_unusable_bootstrap_kubeconfig_end_the_start_with_a_sentence(bench: Bench) -> None:
    wrong = await bench.program("wrong", "spoke", "run", "--cluster-name=Bad_Name", "--cluster-healthcheck-period=0s").start()
    assert await wrong.ended() == 2
    for words in ("bootstrap-kubeconfig: is required", "cluster-name"):
        assert words in wrong.output
    file = bench.folder / "damaged"
    document = yaml.safe_load(MemoryHub(SystemClock()).bootstrap_kubeconfig())
    document["clusters"][0]["cluster"].pop("certificate-authority-data")
    file.write_text(yaml.safe_dump(document))
    spoke = await bench.spoke("c1", file)
    assert await spoke.ended() == 1
    assert "certificate-authority-data" in spoke.output
    assert "Traceback" not in bench.logs


async def test_an_expired_bootstrap_credential_is_reported_and_replaced_and_a_namesake_is_not_merged(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    spoke = await bench.prepared("c1")
    await bench.bootstrap("c1", "--expires=1s")
    await asyncio.sleep(1.2)  # until it has expired
    await spoke.start()
    await spoke.says("expired at")
    assert (await spoke.probe("/livez"))[0] == 200
    code, text = await spoke.probe("/readyz")
    assert (code, "expired at" in text) == (503, True)
    await bench.bootstrap("c1")
    await bench.available("c1")

    twin = bench.program(
        *("spoke-twin", "spoke", "run", "--cluster-name", "c1", "--kubeconfig", str(await bench.hollow("twin"))),
        *("--bootstrap-kubeconfig", str(await bench.bootstrap("c1"))),
    )
    await twin.start()
    await twin.says("another cluster")
    assert len(await bench.requests()) == 1
    assert twin.running


async def test_a_hub_that_is_away_hangs_or_drains_fails_readiness_only_and_is_found_again(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*", "--shutdown-delay=1s", *SHORT_LEASE)
    spoke = await bench.spoke("c1", None, "--hub-silence=2s")
    await bench.available("c1")
    await until(lambda: is_ready(spoke), what="the agent is ready")
    await hub.kill()
    await until(lambda: is_ready(spoke, 503), what="the agent is not ready")
    assert [(await spoke.probe(path))[0] for path in ("/livez", "/healthz")] == [200, 200]
    await hub.start()
    await until(lambda: is_ready(spoke), what="the agent is ready again")
    await spoke.says("session.opened", 2)

    hub.send(signal.SIGSTOP)
    await spoke.says("has not acknowledged a beat for 4 s")
    hub.send(signal.SIGCONT)
    await spoke.says("session.opened", 3)
    await bench.available("c1")

    assert await hub.stop() == 0
    await hub.start()
    await spoke.says("session.opened", 4)
    assert spoke.output.count("session.opened") < 20
    await bench.available("c1")
