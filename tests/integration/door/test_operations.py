"""What operators order and look at: drained replicas, moved clusters, diagnoses, the log level and metrics."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hub.apiserver.verbosity import PATH as LOG_LEVEL
from hub.domain import cluster as cluster_rules
from hub.domain import document as doc
from hub.domain import reported
from hub.domain.cluster import CLUSTER_UID, Joining
from hub.domain.heartbeat import Beat
from hub.domain.replica import Replica
from hub.domain.reported import HubState, ReportedHub
from hub.services import clusters, heartbeats, moves, replicas
from hub.services import verbosity as orders
from machinery.election.lock import Candidate
from machinery.errors import BadRequestError, ForbiddenError, InvalidError
from machinery.identity import ClusterName
from machinery.kube.client import KubeClient
from machinery.metrics import gauge
from tests.fakes.inprocess_hub import HUB
from tests.integration.door.conftest import ACCOUNTS, REPLICA, HubUnderTest, admin_of, hub_with, nobody

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ONE = Replica("hub-0", "here", "i1", "1", "127.0.0.1:8443", "127.0.0.1:6443", EPOCH, EPOCH, sessions=1, ready=True)


async def shown(hub: HubUnderTest, name: str) -> dict[str, object]:
    status: dict[str, object] = json.loads((await hub.hubctl("get", "replica", name, "-o", "json")).out)["status"]
    return status


async def test_an_operator_drains_a_replica_waits_for_its_sessions_and_takes_it_back(hub: HubUnderTest) -> None:
    refused = await hub.hubctl("drain", "replica", REPLICA)
    assert (refused.code, f'no other replica than "{REPLICA}" takes sessions' in refused.err) == (1, True), refused.err
    await hub.store.run(replicas.begin, ONE)
    done = asyncio.create_task(hub.hubctl("drain", "replica", "hub-0", "--timeout", "60s"))
    async with asyncio.timeout(30):
        while (await shown(hub, "hub-0"))["state"] != "Draining":
            pass
    while not done.done():
        await hub.store.run(replicas.beat, replace(ONE, sessions=0))
        await asyncio.wait({done}, timeout=0.5)
    assert (done.result().code, done.result().out.splitlines()[-1]) == (0, "0 sessions are left"), done.result().err
    assert (await shown(hub, "hub-0"))["state"] == "Drained"
    assert "drains the replica hub-0" in (await hub.kubectl("get", "events", "-A")).out
    assert (await hub.hubctl("uncordon", "replica", "hub-0")).out == 'replica "hub-0" takes sessions\n'
    assert (await shown(hub, "hub-0"))["state"] == "Ready"


async def test_what_cannot_be_drained_is_told_and_who_may_not_does_not(hub: HubUnderTest) -> None:
    for name in ("hub-0", "hub-1"):
        await hub.store.run(replicas.begin, replace(ONE, name=name))
    late = await hub.hubctl("drain", "replica", "hub-0", "--timeout", "1s")
    assert (late.code, "still has 1 sessions" in late.err) == (4, True), late.err
    assert (await hub.hubctl("drain", "replica", "nowhere")).code == 3
    await hub.store.run(lambda tx: tx.replicas.put(replace(ONE, name="hub-1", seen=tx.now, sessions=0)))
    unheard = await hub.hubctl("drain", "replica", "hub-1", "--force", "--timeout", "1s")
    assert (unheard.code, "has not told yet" in unheard.err) == (4, True), (
        "that it had no session before the order is no answer"
    )
    agent = await hub.agent("edge1")
    refused = await hub.hubctl("uncordon", "replica", "hub-0", path=agent)
    assert (refused.code, "hubreplicas/drain" in refused.err) == (1, True), refused.err
    assert (await shown(hub, "hub-0"))["drained"] is True


EDGE, OTHER = ClusterName("edge1"), "b2f1d5a0-0000-4000-8000-000000000009"
ENDS = datetime(2026, 12, 1, tzinfo=UTC)


async def listing(hub: HubUnderTest) -> None:
    """A cluster whose agent is ready at two of its three hubs."""
    await hub.join("edge1")
    hubs = (
        ReportedHub(HUB, "eu-1", "https://eu-1:6443", HubState.READY, ENDS),
        ReportedHub(OTHER, "eu-2", "https://eu-2:6443", HubState.READY, ENDS),
        ReportedHub("", "us-1", "https://us-1:6443", HubState.LOST),
    )
    await hub.store.run(lambda tx: tx.facts.set(moves.HUB_ID, HUB))
    await hub.store.run(moves.report_hubs, EDGE, 0, reported.encoded(hubs), "agent")


async def test_operators_alone_move_a_cluster_to_a_hub_where_its_agent_is_ready(hub: HubUnderTest) -> None:
    await listing(hub)
    agent = await hub.agent("edge1")
    for path in (agent, await hub.agent("edge2")):
        refused = await hub.hubctl("move", "cluster", "edge1", "--to", "eu-2", path=path)
        assert (refused.code, "managedclusters/move" in refused.err) == (1, True), refused.err
    assert (await hub.hubctl("move", "cluster", "edge1", "--cancel")).out == 'cluster "edge1" was not asked to move\n'

    refused = await hub.hubctl("move", "cluster", "edge1", "--to", "us-1")
    assert refused.code == 1
    assert "eu-1 (Ready), eu-2 (Ready), us-1 (Lost)" in refused.err
    assert (await hub.hubctl("move", "cluster", "edge9", "--to", "eu-2")).code == 3
    assert (await hub.hubctl("move", "cluster", "edge1")).code == 2

    assert " 2/3 " in (await hub.hubctl("get", "clusters")).out
    ordered = await hub.hubctl("move", "cluster", "edge1", "--to", "eu-2")
    assert (ordered.code, f"is asked to move to the hub eu-2 ({OTHER})" in ordered.out) == (0, True)
    page = (await hub.hubctl("describe", "cluster", "edge1")).out
    assert f"Moves To:       {OTHER}" in page
    assert [line.split()[:2] for line in page.splitlines() if "us-1" in line] == [["us-1", "Lost"]]
    assert "2026-12-01T00:00:00Z" in page
    assert (await hub.hubctl("move", "cluster", "edge1", "--cancel")).out == 'cluster "edge1" stays\n'
    assert (await hub.hubctl("move", "cluster", "edge1", "--cancel")).out == 'cluster "edge1" was not asked to move\n'


async def test_a_cluster_made_here_gets_the_lease_that_is_set(tmp_path: Path) -> None:
    async with hub_with(tmp_path, default_lease_duration=timedelta(seconds=30)) as hub:
        cluster = tmp_path / "edge1.yaml"
        cluster.write_text("apiVersion: cluster.open-cluster-management.io/v1\nkind: ManagedCluster\nmetadata: {name: edge1}\n")
        assert (await hub.kubectl("apply", "-f", str(cluster))).code == 0
        stored = await hub.store.read(clusters.find, EDGE)
        assert stored.document["spec"]["leaseDurationSeconds"] == 30


async def test_an_operator_lets_a_rebuilt_cluster_have_its_name(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    refused = await hub.hubctl("accept", "edge1", "--rebuilt")
    assert (refused.code, "no other cluster has asked" in refused.err) == (1, True)
    stored = await hub.store.read(clusters.find, EDGE)
    await hub.store.run(clusters.put, doc.with_annotations(stored.document, {CLUSTER_UID: "uid-1"}), stored, "agent")
    agent = await hub.agent("edge1")
    await hub.store.run(clusters.note_duplicate, Joining(EDGE, "uid-2"), "agent")
    told = await hub.hubctl("accept", "edge1", "--rebuilt")
    assert (told.code, "from the cluster with uid uid-1 to the one with uid uid-2" in told.out) == (0, True)
    after = (await hub.store.read(clusters.find, EDGE)).document
    assert (doc.annotations(after)[CLUSTER_UID], doc.mapping(after, "spec")["hubAcceptsClient"]) == ("uid-2", True)
    assert (await hub.hubctl("get", "cluster", "edge1", path=agent)).code == 1


EDGE = ClusterName("edge1")


async def test_a_cluster_is_diagnosed_from_unknown_to_available(hub: HubUnderTest) -> None:
    shown = await hub.kubectl("get", "clusterdiagnosis", "edge1")
    assert (shown.code, shown.out.split("\n")[0].split()) == (0, ["NAME", "AVAILABLE", "CAUSE", "MESSAGE"]), shown.err
    assert "NoLeader" in shown.out
    assert (await hub.kubectl("get", "clusterdiagnoses")).code == 1
    bad = await hub.hubctl("diagnose", "cluster", "No_Name")
    assert (bad.code != 0, "NotFound" in bad.err or "not valid" in bad.err) == (True, True), bad.err

    leaderless = await hub.hubctl("diagnose", "cluster", "edge1")
    assert (leaderless.code, "no replica leads" in leaderless.out) == (6, True), leaderless.err
    await hub.store.run(lambda tx: tx.leaders.take(None, Candidate("hub-0", "i1"), cluster_rules.lease_duration({})))
    nowhere = await hub.hubctl("diagnose", "cluster", "edge1")
    assert nowhere.code == 6
    assert "-> hubctl create bootstrap-kubeconfig --cluster edge1" in nowhere.out
    await hub.join("edge1")
    await hub.agent("edge1")
    assert "-> hubctl accept edge1" in (await hub.hubctl("diagnose", "cluster", "edge1")).out
    assert (await hub.hubctl("accept", "edge1")).code == 0
    silent = await hub.hubctl("diagnose", "cluster", "edge1", "-o", "json")
    status = json.loads(silent.out)["status"]
    assert (silent.code, status["well"], status["cause"]["reason"]) == (6, False, "NoSession"), silent.err
    await hub.store.run(heartbeats.flush, [Beat(EDGE, cluster_rules.lease_duration({}) / 60, available=True)])
    await hub.store.run(clusters.set_condition, EDGE, cluster_rules.AVAILABLE, "agent")
    well = await hub.hubctl("diagnose", "cluster", "edge1")
    assert (well.code, "broken" in well.out, "waits" in well.out) == (0, False, False), well.out + well.err
    both = await hub.hubctl("diagnose", "cluster", "edge1", "edge2")
    assert (both.code, "not well: edge2" in both.err) == (6, True)

    agent = await hub.agent("edge1")
    for name in ("edge1", "edge2"):
        refused = await hub.hubctl("diagnose", "cluster", name, path=agent)
        assert (refused.code, "clusterdiagnoses" in refused.err) == (1, True), refused.err


async def test_the_log_level_is_ordered_by_operators_alone_and_reset(hub: HubUnderTest, subtests: pytest.Subtests) -> None:
    for body, error in (
        ({"level": "chatty"}, InvalidError),
        ({"level": "debug", "for": "a while"}, BadRequestError),
        ({"level": "debug", "for": "9d"}, InvalidError),
        ({"level": 4}, BadRequestError),
        ({}, BadRequestError),
    ):
        with subtests.test(body=body):
            async with await KubeClient.from_file(await hub.admin()) as client:
                with pytest.raises(error):
                    await client.update(LOG_LEVEL, body)
            assert hub.verbosity.level == "info"
            assert await hub.store.read(orders.standing) is None

    ended = await hub.hubctl("log-level", "verbose")
    assert ended.code == 2
    assert "debug" in ended.err

    await hub.join("edge1")
    async with await KubeClient.from_file(await hub.agent("edge1")) as client:
        with pytest.raises(ForbiddenError):
            await client.get(LOG_LEVEL)
        with pytest.raises(ForbiddenError):
            await client.update(LOG_LEVEL, {"level": "debug"})
    assert hub.verbosity.level == "info"

    assert (await hub.hubctl("log-level")).out == "info, as it was started\n"
    ordered = await hub.hubctl("log-level", "debug", "--for", "10m")
    assert ordered.out.startswith("debug until ")
    assert hub.verbosity.level == "debug"
    order = await hub.store.read(orders.standing)
    assert order is not None
    assert (order.level, order.by) == ("debug", "admin")
    assert (await hub.hubctl("log-level", "reset")).out == "info, as it was started\n"
    assert hub.verbosity.level == "info"

    async with await KubeClient.from_file(await hub.admin()) as client:
        answer = await client.raw("PUT", LOG_LEVEL, body={"level": "warning"})
        assert (answer.status, hub.verbosity.level) == (200, "warning")
        told = await client.get(LOG_LEVEL)
        assert (told["ordered"], told["by"], told["started"]) == ("warning", "admin", "info")


async def test_a_service_account_that_is_bound_to_the_monitoring_role_may_scrape(hub: HubUnderTest) -> None:
    hub.hub.context.metrics.bind(gauge("hub_answer", "An answer."), lambda: 42)
    admin = await admin_of(hub)
    await admin.ask("POST", ACCOUNTS, {"metadata": {"name": "scraper"}})
    token = (await admin.ask("POST", f"{ACCOUNTS}/scraper/token", {"spec": {}}))[1]["status"]["token"]
    scraper = {"authorization": f"Bearer {token}"}
    assert (await nobody(hub).ask("GET", "/metrics", **scraper))[0] == 403
    await admin.bind("system:monitoring", "ServiceAccount", "scraper", namespace="default")
    status, text = await nobody(hub).ask("GET", "/metrics", **scraper)
    assert status == 200
    assert "# HELP muster_hub_answer An answer.\n# TYPE muster_hub_answer gauge\nmuster_hub_answer 42\n" in text
    assert (await nobody(hub).ask("POST", "/metrics", {}, **scraper))[0] == 403
