"""hubctl on any kind of object, on add-ons, on loads and events."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.api.hubreplicas import Load, Replica
from hub.api.managedclusters.cluster import ClusterClaim, StatusReport
from hub.registry.hubreplicas import service as replicas
from hub.registry.managedclusters import service as clusters
from hubctl.client.resources import CLUSTERS
from hubctl.errors import DONE, FAILED, MISUSED, NOT_FOUND, TIMED_OUT
from hubctl.kubectl_plugin import offered
from machinery.identity import ClusterName
from tests.fakes.hubctl import Said
from tests.integration.https_door.conftest import HubUnderTest, admin_of

RULE = """
apiVersion: hub.open-cluster-management.io/v1alpha1
kind: ApprovalRule
metadata: {name: edges, labels: {team: north}}
spec: {decides: [Accept], requesters: [{kind: BootstrapCredential}], clusterNames: ["edge*"]}
"""
ADDON = """
apiVersion: addon.open-cluster-management.io/v1beta1
kind: ManagedClusterAddOn
metadata: {name: shop, namespace: edge1}
spec: {}
"""


@pytest.fixture
async def fleet(hub: HubUnderTest) -> HubUnderTest:
    await hub.join("edge1", region="eu")
    await hub.join("edge2", region="us")
    return hub


async def test_kinds_names_fields_and_limits_choose_objects(fleet: HubUnderTest) -> None:
    roles, versioned = "clusterroles.rbac.authorization.k8s.io", f"managedclusters.v1.{CLUSTERS.group}"
    for word in ("configmaps", "configmap", "cm", "ConfigMap", roles, versioned):
        await fleet.output(f"hubctl get {word}")
    named = f"managedcluster.{CLUSTERS.group}"
    assert await fleet.output("hubctl get clusters edge2 edge1 -o name") == f"{named}/edge2\n{named}/edge1\n"
    assert (await fleet.output("hubctl get cluster/edge1 mcl/edge2 -o name")).count("/") == 2
    listed = json.loads(await fleet.output("hubctl get clusters,csr -o json"))
    assert [item["metadata"]["name"] for item in listed["items"]] == ["edge1", "edge2"]
    both = await fleet.output("hubctl get cluster/edge1 namespace/default --no-headers")
    assert [line.split()[0] for line in both.splitlines() if line] == [f"{named}/edge1", "namespace/default"]
    assert await fleet.hubctl("get clusters nope --ignore-not-found") == Said(DONE, "", "")
    assert await fleet.output("hubctl get clusters --field-selector metadata.name=edge2 -o name") == f"{named}/edge2\n"
    assert await fleet.output("hubctl get clusters --limit 1 -o name") == f"{named}/edge1\n"
    page = json.loads(await fleet.output("hubctl get clusters --limit 1 -o json"))
    assert (len(page["items"]), "continue" in page["metadata"]) == (1, False)
    some = await fleet.hubctl("get clusters edge1 nope -o name")
    assert (some.code, "edge1" in some.out, '"nope" not found' in some.err) == (NOT_FOUND, True, True)
    await fleet.runs(
        ("hubctl api-resources", DONE, "managedclustersets"),
        ("hubctl get clustres", MISUSED, 'there is no kind "clustres": did you mean "clusters"?'),
        ("hubctl get xyzzy", MISUSED, "api-resources"),
        ("hubctl get cluster/edge1 edge2", MISUSED, ""),
        ("hubctl get clusters,csr edge1", MISUSED, ""),
        ("hubctl get cluster/", MISUSED, ""),
        ("hubctl get clusters edge1 -l a=b", MISUSED, ""),
        ("hubctl label clusters -l no=body a=b", NOT_FOUND, ""),
    )


async def test_clusters_are_labelled_annotated_and_tainted(fleet: HubUnderTest) -> None:
    taint = "hubctl get cluster edge1 -o jsonpath={.spec.taints[?(@.key=='gpu')].value}".replace("'", "\\'")
    both = 'cluster "edge1" {0}\ncluster "edge2" {0}\n'.format
    await fleet.runs(
        ("hubctl label clusters -l region=eu tier=gold", DONE, 'cluster "edge1" labeled\n'),
        ("hubctl label cluster edge1 tier=tin", FAILED, '"tier" is "gold" already: --overwrite changes it'),
        ("hubctl label cluster/edge1 tier=tin --overwrite --dry-run", DONE, 'cluster "edge1" labeled (dry run)\n'),
        ("hubctl label cluster edge1 --list", DONE, "  tier=gold\n"),
        ("hubctl label cluster edge1 tier- none-", DONE, 'cluster "edge1" unlabeled\n'),
        ("hubctl label cluster edge1 tier-", DONE, 'cluster "edge1" not unlabeled\n'),
        ("hubctl annotate clusters --all owner='north wing'", DONE, ""),
        ("hubctl get clusters -o jsonpath={.items[*].metadata.annotations.owner}", DONE, "north wing north wing"),
        ("hubctl label clusters edge1 a=1 edge2", MISUSED, '"edge2" is neither KEY=VALUE nor KEY-'),
        ("hubctl label cluster edge1 a=1 a-", MISUSED, '"a" cannot be both set and removed'),
        ("hubctl label cluster edge1 a=1 a=2", MISUSED, '"a" cannot be set to two values'),
        ("hubctl annotate cluster edge1 c=x=y region-", DONE, 'cluster "edge1" annotated\n'),
        ("hubctl annotate cluster edge1 c=x=y", DONE, 'cluster "edge1" not annotated\n'),
        ("hubctl annotate cluster edge1 --list", DONE, "  c=x=y\n"),
        ("hubctl label cluster edge1 'a=not a label'", FAILED, "metadata.labels"),
        ("hubctl taint clusters edge1 edge2 gpu=none:NoSelect", DONE, both("tainted")),
        (taint, DONE, "none"),
        ("hubctl taint edge1 gpu=none:NoSelect", DONE, "is already tainted"),
        ("hubctl taint clusters --all gpu-", DONE, both("untainted")),
        ("hubctl taint clusters edge1 gpu-", NOT_FOUND, ""),
    )
    assert await fleet.output(taint) == ""


async def test_manifests_are_applied_deleted_and_refused_with_the_reason(fleet: HubUnderTest, tmp_path: Path) -> None:
    for given, code, words in (
        ("{", MISUSED, "is not YAML"),
        ("[]", MISUSED, "is not a mapping"),
        ("", MISUSED, "no object"),
        ("kind: X", MISUSED, "lacks apiVersion and metadata.name"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}", MISUSED, "-n CLUSTER"),
        ("{apiVersion: v1, kind: ConfigMp, metadata: {name: x}}", NOT_FOUND, 'did you mean "ConfigMap"'),
        ("{apiVersion: v1, kind: Namespace, metadata: {name: x}, spek: {}}", FAILED, "spek"),
    ):
        refused = await fleet.hubctl("apply -f -", given=given)
        assert (refused.code, words in refused.err) == (code, True), refused.err

    await fleet.output("hubctl accept edge1")
    folder = tmp_path / "fleet" / "rules"
    folder.mkdir(parents=True)
    (folder / "rule.yaml").write_text(f"{RULE}---\n{ADDON}")
    (folder / "notes.txt").write_text("not read")
    where = f"hubctl apply -f {folder.parent} -R"
    both = 'approval rule "edges" {0}\nadd-on "shop" {0}\n'.format
    assert (await fleet.output(f"{where} --dry-run")).splitlines()[0] == 'approval rule "edges" created (dry run)'
    assert await fleet.output(where) == both("created")
    assert await fleet.output(where) == both("unchanged")
    changed = RULE.replace("labels: {team: north}", "labels: {}").replace('"edge*"', '"edge-*"')
    assert await fleet.output("hubctl apply -f -", given=changed) == 'approval rule "edges" configured\n'
    rule = yaml.safe_load(await fleet.output("hubctl get rule edges -o yaml"))
    assert (rule["metadata"].get("labels"), rule["spec"]["clusterNames"]) == (None, ["edge-*"])
    refused = await fleet.hubctl("apply -f - --field-manager other", given=RULE)
    assert (refused.code, "--force-conflicts" in refused.err) == (FAILED, True)
    await fleet.output("hubctl apply -f - --field-manager other --force-conflicts", given=RULE)
    deleted = 'add-on "shop" deleted\napproval rule "edges" deleted\n'
    assert await fleet.output(f"hubctl delete -f {folder / 'rule.yaml'}") == deleted


async def test_a_wait_ends_when_it_is_so_and_when_the_time_is_over(fleet: HubUnderTest) -> None:
    late = "timed out before it has condition Accepted=True"
    await fleet.runs(
        ("hubctl wait fleet fleet --for=jsonpath={.status.clusters}=2 --timeout=5s", DONE, "has {.status.clusters}=2"),
        ("hubctl wait cluster edge1 --for=condition=Accepted --timeout 50ms", TIMED_OUT, late),
    )
    wanted = "--for=jsonpath={.metadata.labels.tier}=gold"
    waiting = await fleet.start_hubctl("wait", "cluster/edge1", wanted, "--timeout=20s")
    gone = await fleet.start_hubctl("wait", "clusters", "edge2", "--for=delete", "--timeout=20s")
    await fleet.runs(
        ("hubctl label cluster edge1 tier=gold", DONE, ""),
        ("hubctl delete cluster edge2 --wait --timeout 20s", DONE, ""),
        ("hubctl wait cluster edge2 --for=condition=Available", NOT_FOUND, ""),
        ("hubctl wait cluster edge1 --for=create --timeout=0 -o name", DONE, f"managedcluster.{CLUSTERS.group}/edge1\n"),
    )
    assert await waiting.line() == 'cluster "edge1" has {.metadata.labels.tier}=gold'
    assert await gone.line() == 'cluster "edge2" is deleted'


LOOKED_AT = f"""{RULE.replace("team: north", "a: b")}---
apiVersion: v1
kind: Event
metadata: {{name: looked, namespace: default}}
type: Normal
reason: Looked
message: well
involvedObject: {{kind: ApprovalRule, name: edges}}
lastTimestamp: "2026-01-01T00:00:00Z"
"""
HIDDEN = "{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: default}, data: {key: aGlkZGVu}}"
PARTS = (
    *("Name:         edges", "Labels:       a=b", "Kind:         ApprovalRule", "  Decides:", "    - Accept"),
    *("    - Kind: BootstrapCredential", "  2026-01-01T00:00:00Z   Normal   Looked   well"),
)


async def test_names_come_from_the_hub(fleet: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    await fleet.join("shop1")
    monkeypatch.setenv("HUBCTL_KUBECONFIG", str(await fleet.admin()))

    async def words(line: str) -> list[str]:
        return [each for each in await asyncio.to_thread(offered, line.split(" ")) if not each.startswith(":")]

    offers = {
        "accept edge": ["edge1", "edge2"],
        "accept edge1 ": ["edge2", "shop1"],
        "get clusters s": ["shop1"],
        "get mcl/edge": ["mcl/edge1", "mcl/edge2"],
        "describe cluster shop": ["shop1"],
        "get namespaces def": ["default"],
        "--kubeconfig /absent accept ": [],
        "--context ": ["muster"],
    }
    assert {line: await words(line) for line in offers} == offers
    assert "configmaps" in await words("get config")


async def test_any_kind_is_described_with_its_events_and_secrets_by_size(fleet: HubUnderTest) -> None:
    await fleet.output("hubctl apply -f -", given=LOOKED_AT)
    page = await fleet.output("hubctl describe rule edges")
    for line in PARTS:
        assert line in page.splitlines(), page
    for target in ("cluster/edge1", "mcl edge1"):
        assert (await fleet.output(f"hubctl describe {target}")).startswith("Name: ")
    await fleet.runs(
        ("hubctl describe clustr edge1", MISUSED, 'did you mean "cluster"?'), ("hubctl describe rule none", NOT_FOUND, "")
    )
    await fleet.output("hubctl apply -f -", given=HIDDEN)
    page = await fleet.output("hubctl describe secret s -n default")
    assert ("Key: 6 bytes" in page, "aGlkZGVu" in page, "hidden" in page) == (True, False, False)


V1ALPHA1 = "/apis/addon.open-cluster-management.io/v1alpha1/managedclusteraddons"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def test_add_ons_are_enabled_shown_and_disabled_on_clusters(hub: HubUnderTest) -> None:
    for name, region in (("edge1", "eu"), ("edge2", "eu"), ("edge3", "us")):
        await hub.join(name, region=region)
        await hub.output(f"hubctl accept {name}")
    done = await hub.hubctl("addon enable proxy --clusters edge1,edge2 --annotate a=1")
    assert (done.code, 'no ClusterManagementAddOn "proxy"' in done.err) == (DONE, True), done
    assert done.lines == [f'add-on "proxy" enabled on cluster "{name}"' for name in ("edge1", "edge2")]
    more = await hub.output("hubctl addon enable proxy --all --install-namespace elsewhere")
    assert more.count("already: configured") == 2
    _, shown = await (await admin_of(hub)).get(V1ALPHA1)
    assert {each["spec"]["installNamespace"] for each in shown["items"]} == {"elsewhere"}
    assert [(each["metadata"].get("annotations") or {}).get("a") for each in shown["items"]] == ["1", "1", None]
    assert (await hub.output("hubctl addon disable proxy -l region=eu")).count("disabled") == 2
    again = 'add-on "proxy" is not enabled on cluster "edge1"\n'
    assert await hub.output("hubctl addon disable proxy --clusters edge1") == again
    await hub.runs(
        ("hubctl addon enable proxy --all --annotate a", MISUSED, ""),
        ("hubctl addon enable proxy --clusters edge1,edge9", NOT_FOUND, "edge9"),
        ("hubctl addon disable proxy -l a=b", NOT_FOUND, ""),
        ("hubctl addon disable proxy --clusters edge9", NOT_FOUND, "edge9"),
    )
    left = json.loads(await hub.output("hubctl get addons -o json"))["items"]
    assert [each["metadata"]["namespace"] for each in left] == ["edge1", "edge3"], "the cluster that does not exist fails alone"
    condition = {"type": "Available", "status": "False", "reason": "LeaseStopped", "message": "its lease is old"}
    patch = json.dumps({"status": {"conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    await hub.output("kubectl -n edge1 patch mca proxy --subresource=status --type=merge -p", patch)
    header, row, _ = (await hub.output("hubctl get addons")).splitlines()
    assert header.split()[:3] == ["NAMESPACE", "NAME", "AVAILABLE"]
    assert header.split().count("NAMESPACE") == 2, "and INSTALL NAMESPACE"
    assert row.split()[:3] == ["edge1", "proxy", "False"]
    assert ("LeaseStopped" in row, row.endswith("its lease is old")) == (True, True)
    plain = (await hub.output("kubectl -n edge1 get mca")).splitlines()[0]
    assert plain.split() == ["NAME", "AVAILABLE", "DEGRADED", "PROGRESSING"], "Open Cluster Management's columns"


async def report(hub: HubUnderTest, name: str, capacity: dict[str, str], allocatable: dict[str, str], nodes: int) -> None:
    more: dict[str, Any] = {"kubernetes_version": "v1.31.0", "claims": (ClusterClaim("a", "b"),), "node_count": nodes}
    told = StatusReport(capacity=capacity, allocatable=allocatable, **more)
    await hub.store.run(clusters.report_status, ClusterName(name), told, "agent")


async def test_resources_of_clusters_and_load_of_replicas_are_shown_and_summed(hub: HubUnderTest) -> None:
    for name in ("edge1", "edge2", "edge3"):
        await hub.join(name)
        await hub.output(f"hubctl accept {name}")
    await report(hub, "edge1", {"cpu": "8", "memory": "16Gi"}, {"cpu": "7500m", "memory": "12Gi"}, 2)
    await report(hub, "edge2", {"cpu": "32", "memory": "64Gi"}, {"cpu": "16", "memory": "64Gi"}, 4)
    shown = (await hub.output("hubctl top clusters --sort-by cpu")).splitlines()
    assert shown[0].split()[:6] == ["NAME", "NODES", "CPU", "ALLOCATABLE", "MEMORY", "ALLOCATABLE"]
    assert shown[1].split()[:6] == ["edge2", "4", "32", "16", "64", "64"]
    assert shown[2].split()[:6] == ["edge1", "2", "8", "7.5", "16", "12"]
    assert shown[3].split()[:6] == ["edge3", "0", "0", "0", "0", "0"]
    assert shown[4].split()[:7] == ["3", "clusters", "6", "40", "23.5", "80", "76"]
    documents = json.loads(await hub.output("hubctl top clusters edge1 -o json"))["clusters"]
    assert [(each["name"], each["allocatable"]["cpu"]) for each in documents] == [("edge1", "7500m")]
    some = await hub.hubctl("top clusters edge1 edge9")
    assert (len(some.lines), 'no cluster "edge9"' in some.err) == (3, True)

    load = Load(watches=3, cpu=0.25, memory=128 * 2**20, ahead=timedelta())
    told = Replica("hub-0", "here", "i1", "1", "g", "h", EPOCH, EPOCH, sessions=7, ready=True)
    await hub.store.run(replicas.begin, told)
    await hub.store.run(lambda tx: tx.replicas.put(replace(told, load=load, started=tx.now, seen=tx.now)))
    header, _own, row, total = (await hub.output("hubctl top replicas")).splitlines()
    assert header.split()[:7] == ["NAME", "STATE", "LEADER", "SESSIONS", "WATCHES", "CPU", "MEMORY"]
    assert row.split()[:6] == ["hub-0", "Ready", "7", "3", "250m", "128Mi"]
    assert total.split() == ["2", "replicas", "7", "3"]
    assert [each["name"] for each in json.loads(await hub.output("hubctl top replicas -o json"))["replicas"]][-1] == "hub-0"


async def event(hub: HubUnderTest, name: str, about: str, kind: str, last: str) -> None:
    made = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"}, "type": kind, "count": 2}
    made |= {"involvedObject": {"kind": "ManagedCluster", "name": about}, "reason": "Because", "lastTimestamp": last}
    made["message"] = f"{name} happened"
    assert (await (await admin_of(hub)).ask("POST", "/api/v1/namespaces/default/events", made))[0] == 201


async def test_events_are_shown_in_the_order_in_which_they_were_last_seen(hub: HubUnderTest) -> None:
    await event(hub, "late", "edge1", "Warning", "2026-01-01T00:00:09Z")
    await event(hub, "early", "edge1", "Normal", "2026-01-01T00:00:01Z")
    await event(hub, "other", "edge2", "Normal", "2026-01-01T00:00:05Z")
    everything = (await hub.output("hubctl events")).splitlines()
    assert [line.split()[0] for line in everything[1:]] == [f"2026-01-01T00:00:0{second}Z" for second in (1, 5, 9)]
    assert everything[-1].split()[1:4] == ["Warning", "Because", "managedcluster/edge1"]
    assert everything[-1].endswith("late happened (x2)")
    assert len((await hub.output("hubctl events --for cluster/edge1 --types warning")).splitlines()) == 2
    assert (await hub.output("hubctl events -o yaml")).count("reason: Because") == 3
    await hub.runs(
        ("hubctl events -n edge9", DONE, "no event"),
        ("hubctl events --for edge1", MISUSED, ""),
        ("hubctl events --types Odd", MISUSED, ""),
        ("hubctl events --for nothing/edge1", MISUSED, ""),
    )
