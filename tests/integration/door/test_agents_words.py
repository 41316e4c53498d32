"""Whatever an agent says of its cluster through its session, operators decide about it at the HTTPS door as ever."""

import pytest

from hub.domain.cluster import AGENT_ANNOTATIONS, Claim, ClientConfig, Joining, StatusReport
from hub.services import clusters, room
from machinery.apiserver.limits import OBJECT_LIMIT
from machinery.conditions import Condition
from machinery.errors import TooLargeError
from machinery.identity import ClusterName
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_access import CLUSTERS, Visitor
from tests.integration.door.test_audit import admin

MERGE = {"content-type": "application/merge-patch+json"}
ODD = {
    "condition": StatusReport(conditions=(Condition("A b!", "True", "no reason", ""), Condition("A", "True", "", ""))),
    "long": StatusReport(conditions=(Condition("A" * 5_000, "True", "R" * 5_000, ""),)),
    "claim": StatusReport(claims=(Claim("a\x00\n", "b\x00"), Claim("a", "b"), Claim("a", "c"))),
    "resources": StatusReport(capacity={"\x00": "nothing", " ": ""}, kubernetes_version="\x00"),
    "namespace": StatusReport(namespaces={("default", "x"): (Condition("A b", "True", "a b", ""),)}),
    "url": StatusReport(client_configs=(ClientConfig("https://x y\x00", b"no certificate"),)),
    "version": StatusReport(agent_version="x" * 300_000),
}


def agent_of(cluster: ClusterName) -> str:
    return f"system:open-cluster-management:{cluster}:agent"


async def accepted(hub: HubUnderTest, name: str) -> ClusterName:
    await hub.join(name)
    await hub.store.run(clusters.set_accepted, ClusterName(name), accepted=True, actor="admin")
    return ClusterName(name)


async def decide(operator: Visitor, cluster: str) -> list[int]:
    """The codes of what operators do with a cluster that they trust no more."""
    one = f"{CLUSTERS}/{cluster}"
    patches = (
        {"spec": {"taints": [{"key": "odd", "effect": "NoSelect"}]}},
        {"metadata": {"labels": {"odd": "yes"}}},
        {"spec": {"hubAcceptsClient": False}},
    )
    return [(await operator.ask("PATCH", one, patch, **MERGE))[0] for patch in patches]


async def test_what_an_agent_reports_keeps_nobody_from_deciding_about_its_cluster(hub: HubUnderTest) -> None:
    operator, codes = await admin(hub), {}
    for name, report in ODD.items():
        cluster = await accepted(hub, name)
        await hub.store.run(clusters.report_status, cluster, report, agent_of(cluster))
        codes[name] = await decide(operator, cluster)
    assert codes == {name: [200, 200, 200] for name in ODD}


async def test_what_an_agent_notes_of_its_cluster_keeps_nobody_from_deciding_about_it(hub: HubUnderTest) -> None:
    operator, codes = await admin(hub), []
    for number, note in enumerate(("a b", "", "\x00")):
        cluster = await accepted(hub, f"edge{number}")
        joining = Joining(name=cluster, cluster_uid="", annotations={AGENT_ANNOTATIONS + note: "x" * 300_000})
        await hub.store.run(clusters.ensure, joining, agent_of(cluster))
        codes.append(await decide(operator, cluster))
    assert codes == [[200, 200, 200]] * 3


async def test_who_writes_what_breaks_a_rule_is_told_it_although_the_object_broke_one_before(hub: HubUnderTest) -> None:
    cluster = await accepted(hub, "edge1")
    await hub.store.run(clusters.report_status, cluster, ODD["condition"], agent_of(cluster))
    operator, status = await admin(hub), f"{CLUSTERS}/{cluster}/status"
    conditions = (await operator.ask("GET", f"{CLUSTERS}/{cluster}"))[1]["status"]["conditions"]
    patch = {"status": {"conditions": [*conditions, {**conditions[0], "type": "New", "reason": "new words"}]}}
    code, answer = await operator.ask("PATCH", status, patch, **MERGE)
    assert code == 422
    assert [cause["field"] for cause in answer["details"]["causes"]] == [f"status.conditions[{len(conditions)}].reason"]


def of_size(size: int) -> StatusReport:
    """About so many bytes of it."""
    return StatusReport(kubernetes_version="x" * size)


async def test_an_agent_leaves_room_in_its_cluster_for_those_who_decide_about_it(hub: HubUnderTest) -> None:
    cluster = await accepted(hub, "edge1")
    await hub.store.run(clusters.report_status, cluster, of_size(room.MOST - 20_000), agent_of(cluster))
    with pytest.raises(TooLargeError, match="an agent may fill"):
        await hub.store.run(clusters.report_status, cluster, of_size(room.MOST + 20_000), agent_of(cluster))
    assert await decide(await admin(hub), cluster) == [200, 200, 200]
    assert room.MOST + 256 * 1024 == OBJECT_LIMIT


async def test_what_was_larger_than_an_object_may_be_is_decided_about_as_well(hub: HubUnderTest) -> None:
    cluster = await accepted(hub, "edge1")
    await hub.store.run(clusters.report_status, cluster, of_size(OBJECT_LIMIT + 100_000), "an earlier release")
    operator = await admin(hub)
    assert await decide(operator, cluster) == [200, 200, 200]
    patch = {"metadata": {"annotations": {"more": "x" * 2_000}}}
    assert (await operator.ask("PATCH", f"{CLUSTERS}/{cluster}", patch, **MERGE))[0] == 413
