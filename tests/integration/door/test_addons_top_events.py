"""hubctl addon, top and events at a real door."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hub.domain.cluster import Claim, StatusReport
from hub.domain.replica import Load, Replica
from hub.services import clusters, replicas
from machinery.identity import ClusterName
from tests.integration.door.conftest import HubUnderTest

V1ALPHA1 = "/apis/addon.open-cluster-management.io/v1alpha1/managedclusteraddons"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def enabled(hub: HubUnderTest) -> list[str]:
    return (await hub.hubctl("get", "addons", "-o", "name")).out.splitlines()


async def test_an_add_on_is_enabled_on_clusters_and_disabled_again(hub: HubUnderTest) -> None:
    for name, region in (("edge1", "eu"), ("edge2", "eu"), ("edge3", "us")):
        await hub.join(name, region=region)
        assert (await hub.hubctl("accept", name)).code == 0
    done = await hub.hubctl("addon", "enable", "proxy", "--clusters", "edge1,edge2", "--annotate", "a=1")
    assert (done.code, done.out.splitlines()) == (
        0,
        ['add-on "proxy" enabled on cluster "edge1"', 'add-on "proxy" enabled on cluster "edge2"'],
    ), done.err
    assert 'no ClusterManagementAddOn "proxy"' in done.err
    more = await hub.hubctl("addon", "enable", "proxy", "--all", "--install-namespace", "elsewhere")
    assert more.out.count("already: configured") == 2
    shown = json.loads((await hub.kubectl("get", "--raw", V1ALPHA1)).out)
    assert {each["spec"]["installNamespace"] for each in shown["items"]} == {"elsewhere"}
    assert [(each["metadata"].get("annotations") or {}).get("a") for each in shown["items"]] == ["1", "1", None]
    gone = await hub.hubctl("addon", "disable", "proxy", "-l", "region=eu")
    assert (gone.code, gone.out.count("disabled")) == (0, 2), gone.err
    again = await hub.hubctl("addon", "disable", "proxy", "--clusters", "edge1")
    assert (again.code, again.out) == (0, 'add-on "proxy" is not enabled on cluster "edge1"\n')
    left = json.loads((await hub.hubctl("get", "addons", "-o", "json")).out)["items"]
    assert [each["metadata"]["namespace"] for each in left] == ["edge3"]


async def test_which_clusters_are_meant_is_said_once_and_they_are_there(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    for words in ((), ("--all", "--clusters", "edge1"), ("--clusters", "edge1", "-l", "a=b"), ("--all", "--annotate", "a")):
        assert (await hub.hubctl("addon", "enable", "proxy", *words)).code == 2, words
    nobody = await hub.hubctl("addon", "enable", "proxy", "--clusters", "edge1,edge9")
    assert (nobody.code != 0, "edge9" in nobody.err, await enabled(hub)) == (True, True, []), "nothing is done by half"
    assert (await hub.hubctl("addon", "disable", "proxy", "-l", "a=b")).code != 0


async def test_add_ons_are_shown_with_why_and_since_when(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    assert (await hub.hubctl("accept", "edge1")).code == 0
    assert (await hub.hubctl("addon", "enable", "proxy", "--clusters", "edge1")).code == 0
    condition = {"type": "Available", "status": "False", "reason": "LeaseStopped", "message": "its lease is old"}
    patch = json.dumps({"status": {"conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    patched = await hub.kubectl("-n", "edge1", "patch", "mca", "proxy", "--subresource=status", "--type=merge", "-p", patch)
    assert patched.code == 0, patched.err
    header, row = (await hub.hubctl("get", "addons")).out.splitlines()
    assert header.split()[:3] == ["NAMESPACE", "NAME", "AVAILABLE"]
    assert row.split()[:3] == ["edge1", "proxy", "False"]
    assert "LeaseStopped" in row
    assert row.endswith("its lease is old")
    plain = (await hub.kubectl("-n", "edge1", "get", "mca")).out.splitlines()[0]
    assert plain.split() == ["NAME", "AVAILABLE", "DEGRADED", "PROGRESSING"], "Open Cluster Management's columns"


async def report(hub: HubUnderTest, name: str, capacity: dict[str, str], allocatable: dict[str, str], nodes: int) -> None:
    told = StatusReport(
        capacity=capacity, allocatable=allocatable, kubernetes_version="v1.31.0", claims=(Claim("a", "b"),), node_count=nodes
    )
    await hub.store.run(clusters.report_status, ClusterName(name), told, "agent")


async def test_what_clusters_have_is_shown_and_counted_together(hub: HubUnderTest) -> None:
    for name in ("edge1", "edge2", "edge3"):
        await hub.join(name)
        assert (await hub.hubctl("accept", name)).code == 0
    await report(hub, "edge1", {"cpu": "8", "memory": "16Gi"}, {"cpu": "7500m", "memory": "12Gi"}, 2)
    await report(hub, "edge2", {"cpu": "32", "memory": "64Gi"}, {"cpu": "16", "memory": "64Gi"}, 4)
    answer = await hub.hubctl("top", "clusters", "--sort-by", "cpu")
    assert answer.code == 0, answer.err
    shown = answer.out.splitlines()
    assert shown[1].split()[:8] == ["edge2", "4", "16", "32", "50%", "64", "64", "100%"]
    assert shown[2].split()[:8] == ["edge1", "2", "7.5", "8", "94%", "12", "16", "75%"]
    assert shown[3].split()[:8] == ["edge3", "0", "0", "0", "-", "0", "0", "-"]
    assert shown[4].split()[:9] == ["3", "clusters", "6", "23.5", "40", "59%", "76", "80", "95%"]
    some = await hub.hubctl("top", "clusters", "edge1", "edge9")
    assert (len(some.out.splitlines()), 'no cluster "edge9"' in some.err) == (3, True)


async def test_how_replicas_fare_is_shown(hub: HubUnderTest) -> None:
    load = Load(watches=3, cpu=0.25, memory=128 * 2**20, ahead=timedelta())
    told = Replica("hub-0", "here", "i1", "1", "g", "h", EPOCH, EPOCH, sessions=7, ready=True)
    await hub.store.run(replicas.begin, told)
    await hub.store.run(lambda tx: tx.replicas.put(replace(told, load=load, started=tx.now, seen=tx.now)))
    header, row, total = (await hub.hubctl("top", "replicas")).out.splitlines()
    assert header.split()[:7] == ["NAME", "STATE", "LEADER", "SESSIONS", "WATCHES", "CPU", "MEMORY"]
    assert row.split()[:6] == ["hub-0", "Ready", "7", "3", "250m", "128Mi"]
    assert total.split() == ["1", "replicas", "7", "3"]


async def event(hub: HubUnderTest, name: str, about: str, kind: str, last: str) -> None:
    made = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "ManagedCluster", "name": about},
        "type": kind,
        "reason": "Because",
        "message": f"{name} happened",
        "count": 2,
        "lastTimestamp": last,
    }
    path = hub.folder / f"{name}.json"
    path.write_text(json.dumps(made))
    assert (await hub.kubectl("create", "-f", str(path))).code == 0


async def test_events_are_shown_in_the_order_in_which_they_were_last_seen(hub: HubUnderTest) -> None:
    await event(hub, "late", "edge1", "Warning", "2026-01-01T00:00:09Z")
    await event(hub, "early", "edge1", "Normal", "2026-01-01T00:00:01Z")
    await event(hub, "other", "edge2", "Normal", "2026-01-01T00:00:05Z")
    everything = (await hub.hubctl("events")).out.splitlines()
    assert [line.split()[0] for line in everything[1:]] == [f"2026-01-01T00:00:0{second}Z" for second in (1, 5, 9)]
    assert everything[-1].split()[1:4] == ["Warning", "Because", "managedcluster/edge1"]
    assert everything[-1].endswith("late happened (x2)")
    about = await hub.hubctl("events", "--for", "cluster/edge1", "--types", "warning")
    assert len(about.out.splitlines()) == 2
    assert "no event" in (await hub.hubctl("events", "-n", "edge9")).err
    shown = (await hub.hubctl("events", "-o", "yaml")).out
    assert shown.count("reason: Because") == 3
    for words in (("--for", "edge1"), ("--types", "Odd"), ("--for", "nothing/edge1")):
        assert (await hub.hubctl("events", *words)).code == 2, words
