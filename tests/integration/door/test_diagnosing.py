"""hubctl diagnose cluster at a real door: what is shown, the exit codes, and who may ask."""

import json

from hub.domain import cluster as rules
from hub.domain.heartbeat import Beat
from hub.services import clusters, heartbeats
from machinery.election.lock import Candidate
from machinery.identity import ClusterName
from tests.integration.door.conftest import HubUnderTest

EDGE = ClusterName("edge1")


async def test_a_cluster_is_walked_from_nowhere_to_available(hub: HubUnderTest) -> None:
    leaderless = await hub.hubctl("diagnose", "cluster", "edge1")
    assert (leaderless.code, "no replica leads" in leaderless.out) == (6, True), leaderless.err
    await hub.store.run(lambda tx: tx.leaders.take(None, Candidate("hub-0", "i1"), rules.lease_duration({})))
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
    await hub.store.run(heartbeats.flush, [Beat(EDGE, rules.lease_duration({}) / 60, available=True)])
    await hub.store.run(clusters.set_condition, EDGE, rules.AVAILABLE, "agent")
    well = await hub.hubctl("diagnose", "cluster", "edge1")
    assert (well.code, "broken" in well.out, "waits" in well.out) == (0, False, False), well.out + well.err
    both = await hub.hubctl("diagnose", "cluster", "edge1", "edge2")
    assert (both.code, "not well: edge2" in both.err) == (6, True)


async def test_kubectl_asks_the_same_by_name_alone(hub: HubUnderTest) -> None:
    shown = await hub.kubectl("get", "clusterdiagnosis", "edge1")
    assert (shown.code, shown.out.split("\n")[0].split()) == (0, ["NAME", "AVAILABLE", "CAUSE", "MESSAGE"]), shown.err
    assert "NoLeader" in shown.out
    assert (await hub.kubectl("get", "clusterdiagnoses")).code == 1
    bad = await hub.hubctl("diagnose", "cluster", "No_Name")
    assert (bad.code != 0, "NotFound" in bad.err or "not valid" in bad.err) == (True, True), bad.err


async def test_an_agent_is_told_nothing_of_others_or_itself(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    agent = await hub.agent("edge1")
    for name in ("edge1", "edge2"):
        refused = await hub.hubctl("diagnose", "cluster", name, path=agent)
        assert (refused.code, "clusterdiagnoses" in refused.err) == (1, True), refused.err
