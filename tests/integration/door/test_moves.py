"""hubctl move, and the hubs that an agent reports, at a real door: what is shown, who may order, and what is refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from hub.domain import document as doc
from hub.domain import reported
from hub.domain.cluster import CLUSTER_UID, Joining
from hub.domain.reported import HubState, ReportedHub
from hub.services import clusters, moves
from machinery.identity import ClusterName
from tests.integration.door.conftest import HUB_ID, HubUnderTest

EDGE, OTHER = ClusterName("edge1"), "b2f1d5a0-0000-4000-8000-000000000009"
ENDS = datetime(2026, 12, 1, tzinfo=UTC)


async def listing(hub: HubUnderTest) -> None:
    """A cluster whose agent is ready at two of its three hubs."""
    await hub.join("edge1")
    hubs = (
        ReportedHub(HUB_ID, "eu-1", "https://eu-1:6443", HubState.READY, ENDS),
        ReportedHub(OTHER, "eu-2", "https://eu-2:6443", HubState.READY, ENDS),
        ReportedHub("", "us-1", "https://us-1:6443", HubState.LOST),
    )
    await hub.store.run(lambda tx: tx.facts.set(moves.HUB_ID, HUB_ID))
    await hub.store.run(moves.report_hubs, EDGE, 0, reported.encoded(hubs), "agent")


async def test_an_operator_moves_a_cluster_and_takes_it_back(hub: HubUnderTest) -> None:
    await listing(hub)
    assert " 2/3 " in (await hub.hubctl("get", "clusters")).out
    ordered = await hub.hubctl("move", "cluster", "edge1", "--to", "eu-2")
    assert (ordered.code, f"is asked to move to the hub eu-2 ({OTHER})" in ordered.out) == (0, True)
    page = (await hub.hubctl("describe", "cluster", "edge1")).out
    assert f"Moves To:       {OTHER}" in page
    assert [line.split()[:2] for line in page.splitlines() if "us-1" in line] == [["us-1", "Lost"]]
    assert "2026-12-01T00:00:00Z" in page
    assert (await hub.hubctl("move", "cluster", "edge1", "--cancel")).out == 'cluster "edge1" stays\n'
    assert (await hub.hubctl("move", "cluster", "edge1", "--cancel")).out == 'cluster "edge1" was not asked to move\n'


async def test_a_move_to_where_the_agent_is_not_ready_names_its_hubs(hub: HubUnderTest) -> None:
    await listing(hub)
    refused = await hub.hubctl("move", "cluster", "edge1", "--to", "us-1")
    assert refused.code == 1
    assert "eu-1 (Ready), eu-2 (Ready), us-1 (Lost)" in refused.err
    assert (await hub.hubctl("move", "cluster", "edge9", "--to", "eu-2")).code == 3
    assert (await hub.hubctl("move", "cluster", "edge1")).code == 2


async def test_who_may_not_move_clusters_does_not(hub: HubUnderTest) -> None:
    await listing(hub)
    agent = await hub.agent("edge1")
    for path in (agent, await hub.agent("edge2")):
        refused = await hub.hubctl("move", "cluster", "edge1", "--to", "eu-2", path=path)
        assert (refused.code, "managedclusters/move" in refused.err) == (1, True), refused.err
    assert (await hub.hubctl("move", "cluster", "edge1", "--cancel")).out == 'cluster "edge1" was not asked to move\n'


async def test_a_cluster_made_here_gets_the_lease_that_is_set(tmp_path: Path) -> None:
    hub = HubUnderTest(tmp_path, lease=timedelta(seconds=30))
    await hub.start()
    try:
        cluster = tmp_path / "edge1.yaml"
        cluster.write_text("apiVersion: cluster.open-cluster-management.io/v1\nkind: ManagedCluster\nmetadata: {name: edge1}\n")
        assert (await hub.kubectl("apply", "-f", str(cluster))).code == 0
        stored = await hub.store.read(clusters.find, EDGE)
        assert stored.document["spec"]["leaseDurationSeconds"] == 30
    finally:
        await hub.stop()


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
