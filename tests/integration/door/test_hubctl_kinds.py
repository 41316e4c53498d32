"""hubctl on any kind of object, on add-ons, on loads and events, and as shells and kubectl call it."""

import asyncio
import json
import os
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from hub.cli.failures import MISUSED, NOT_FOUND, TIMED_OUT
from hub.cli.plugin import offered
from hub.cli.resources import CLUSTERS
from hub.domain.cluster import Claim, StatusReport
from hub.domain.replica import Load, Replica
from hub.services import clusters, replicas
from machinery.identity import ClusterName
from tests.fakes.hubctl import Said, hubctl_at
from tests.integration.door.conftest import Ended, HubUnderTest, admin_of, run

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


async def ask(hub: HubUnderTest, *words: str, given: str = "") -> Said:
    return await hubctl_at(await hub.admin(), *words, given=given)


async def done(hub: HubUnderTest, *words: str, given: str = "") -> str:
    said = await ask(hub, *words, given=given)
    assert said.code == 0, (words, said.err)
    return said.out


@pytest.fixture
async def fleet(hub: HubUnderTest) -> HubUnderTest:
    await hub.join("edge1", region="eu")
    await hub.join("edge2", region="us")
    return hub


async def test_kinds_names_fields_and_limits_choose_objects(fleet: HubUnderTest) -> None:
    for word in (
        "configmaps",
        "configmap",
        "cm",
        "ConfigMap",
        "clusterroles.rbac.authorization.k8s.io",
        f"managedclusters.v1.{CLUSTERS.group}",
    ):
        assert (await ask(fleet, "get", word)).code == 0, word
    assert "managedclustersets" in await done(fleet, "api-resources")
    wrong = await ask(fleet, "get", "clustres")
    assert (wrong.code, 'there is no kind "clustres": did you mean "clusters"?' in wrong.err) == (MISUSED, True)
    assert "api-resources" in (await ask(fleet, "get", "xyzzy")).err

    several = await done(fleet, "get", "clusters", "edge2", "edge1", "-o", "name")
    assert [line.rpartition("/")[2] for line in several.splitlines()] == ["edge2", "edge1"]
    assert (await done(fleet, "get", "cluster/edge1", "mcl/edge2", "-o", "name")).count("/") == 2
    listed = json.loads(await done(fleet, "get", "clusters,csr", "-o", "json"))
    assert [item["metadata"]["name"] for item in listed["items"]] == ["edge1", "edge2"]
    both = await done(fleet, "get", "cluster/edge1", "namespace/default", "--no-headers")
    assert [line.split()[0] for line in both.splitlines() if line] == [
        "managedcluster.cluster.open-cluster-management.io/edge1",
        "namespace/default",
    ]
    for words in (("cluster/edge1", "edge2"), ("clusters,csr", "edge1"), ("cluster/",), ("clusters", "edge1", "-l", "a=b")):
        assert (await ask(fleet, "get", *words)).code == MISUSED, words

    some = await ask(fleet, "get", "clusters", "edge1", "nope", "-o", "name")
    assert (some.code, "edge1" in some.out, '"nope" not found' in some.err) == (NOT_FOUND, True, True)
    assert (await ask(fleet, "get", "clusters", "nope", "--ignore-not-found")) == Said(0, "", "")
    assert (await ask(fleet, "label", "clusters", "-l", "no=body", "a=b")).code == NOT_FOUND

    assert "edge2" in await done(fleet, "get", "clusters", "--field-selector", "metadata.name=edge2", "-o", "name")
    assert len((await done(fleet, "get", "clusters", "--limit", "1", "-o", "name")).splitlines()) == 1
    page = json.loads(await done(fleet, "get", "clusters", "--limit", "1", "-o", "json"))
    assert (len(page["items"]), "continue" in page["metadata"]) == (1, False)


async def test_clusters_are_labelled_annotated_and_tainted(fleet: HubUnderTest) -> None:
    assert await done(fleet, "label", "clusters", "-l", "region=eu", "tier=gold") == 'cluster "edge1" labeled\n'
    refused = await ask(fleet, "label", "cluster", "edge1", "tier=tin")
    assert (refused.code, '"tier" is "gold" already: --overwrite changes it' in refused.err) == (1, True)
    assert (
        await done(fleet, "label", "cluster/edge1", "tier=tin", "--overwrite", "--dry-run")
        == 'cluster "edge1" labeled (dry run)\n'
    )
    assert "  tier=gold\n" in await done(fleet, "label", "cluster", "edge1", "--list")
    assert await done(fleet, "label", "cluster", "edge1", "tier-", "none-") == 'cluster "edge1" unlabeled\n'
    assert await done(fleet, "label", "cluster", "edge1", "tier-") == 'cluster "edge1" not unlabeled\n'
    await done(fleet, "annotate", "clusters", "--all", "owner=north wing")
    assert (
        await done(fleet, "get", "clusters", "-o", "jsonpath={.items[*].metadata.annotations.owner}") == "north wing north wing"
    )
    assert (await ask(fleet, "label", "clusters", "a=b")).code == MISUSED
    wrong = await ask(fleet, "label", "cluster", "edge1", "a=not a label")
    assert (wrong.code, "metadata.labels" in wrong.err) == (1, True)

    both = await done(fleet, "taint", "clusters", "edge1", "edge2", "gpu=none:NoSelect")
    assert both == 'cluster "edge1" tainted\ncluster "edge2" tainted\n'
    path = "jsonpath={.spec.taints[?(@.key=='gpu')].value}"
    assert await done(fleet, "get", "cluster", "edge1", "-o", path) == "none"
    assert "tainted so already" in await done(fleet, "taint", "edge1", "gpu=none:NoSelect")
    assert await done(fleet, "taint", "clusters", "--all", "gpu-") == 'cluster "edge1" untainted\ncluster "edge2" untainted\n'
    assert await done(fleet, "get", "cluster", "edge1", "-o", path) == ""
    assert (await ask(fleet, "taint", "clusters", "edge1", "gpu-")).code == NOT_FOUND


async def test_manifests_are_applied_deleted_and_refused_with_the_reason(
    subtests: pytest.Subtests, fleet: HubUnderTest, tmp_path: Path
) -> None:
    for given, code, words in (
        ("{", MISUSED, "is not YAML"),
        ("[]", MISUSED, "is no mapping"),
        ("", MISUSED, "no object"),
        ("kind: X", MISUSED, "lacks apiVersion and metadata.name"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}", MISUSED, "-n CLUSTER"),
        ("{apiVersion: v1, kind: ConfigMp, metadata: {name: x}}", NOT_FOUND, 'did you mean "ConfigMap"'),
        ("{apiVersion: v1, kind: Namespace, metadata: {name: x}, spek: {}}", 1, "spek"),
    ):
        with subtests.test(words=words):
            refused = await ask(fleet, "apply", "-f", "-", given=given)
            assert (refused.code, words in refused.err) == (code, True), refused.err

    await done(fleet, "accept", "edge1")
    folder = tmp_path / "fleet" / "rules"
    folder.mkdir(parents=True)
    (folder / "rule.yaml").write_text(f"{RULE}---\n{ADDON}")
    (folder / "notes.txt").write_text("not read")
    where = ("apply", "-f", str(folder.parent), "-R")
    assert (await done(fleet, *where, "--dry-run")).splitlines()[0] == 'approval rule "edges" created (dry run)'
    assert (await done(fleet, *where)).splitlines() == ['approval rule "edges" created', 'add-on "shop" created']
    assert (await done(fleet, *where)).splitlines() == ['approval rule "edges" unchanged', 'add-on "shop" unchanged']
    changed = RULE.replace("labels: {team: north}", "labels: {}").replace('"edge*"', '"edge-*"')
    assert await done(fleet, "apply", "-f", "-", given=changed) == 'approval rule "edges" configured\n'
    rule = yaml.safe_load(await done(fleet, "get", "rule", "edges", "-o", "yaml"))
    assert (rule["metadata"].get("labels"), rule["spec"]["clusterNames"]) == (None, ["edge-*"])
    refused = await ask(fleet, "apply", "-f", "-", "--field-manager", "other", given=RULE)
    assert (refused.code, "--force-conflicts" in refused.err) == (1, True)
    assert (await ask(fleet, "apply", "-f", "-", "--field-manager", "other", "--force-conflicts", given=RULE)).code == 0
    assert (
        await done(fleet, "delete", "-f", str(folder / "rule.yaml")) == 'add-on "shop" deleted\napproval rule "edges" deleted\n'
    )


async def test_a_wait_ends_when_it_is_so_and_when_the_time_is_over(fleet: HubUnderTest) -> None:
    assert "has {.status.clusters}=2" in await done(
        fleet, "wait", "fleet", "fleet", "--for=jsonpath={.status.clusters}=2", "--timeout=5s"
    )

    late = await ask(fleet, "wait", "cluster", "edge1", "--for=condition=Accepted", "--timeout", "50ms")
    assert (late.code, "the time is over before it has condition Accepted=True" in late.err) == (TIMED_OUT, True)
    waiting = asyncio.create_task(
        fleet.hubctl("wait", "cluster/edge1", "--for=jsonpath={.metadata.labels.tier}=gold", "--timeout=20s")
    )
    await asyncio.sleep(0)
    await done(fleet, "label", "cluster", "edge1", "tier=gold")
    assert (await waiting).out == 'cluster "edge1" has {.metadata.labels.tier}=gold\n'
    gone = asyncio.create_task(fleet.hubctl("wait", "clusters", "edge2", "--for=delete", "--timeout=20s"))
    await done(fleet, "delete", "cluster", "edge2", "--wait", "--timeout", "20s")
    assert (await gone).out == 'cluster "edge2" is gone\n'
    assert (await ask(fleet, "wait", "cluster", "edge2", "--for=condition=Available")).code == NOT_FOUND
    assert (
        await done(fleet, "wait", "cluster", "edge1", "--for=create", "--timeout=0", "-o", "name")
        == "managedcluster.cluster.open-cluster-management.io/edge1\n"
    )


COMPLETED = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={at}
_hubctl_completion "{name}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

LOOKED_AT = """
apiVersion: hub.open-cluster-management.io/v1alpha1
kind: ApprovalRule
metadata: {name: edges, labels: {a: b}}
spec: {decides: [Accept], requesters: [{kind: BootstrapCredential}], clusterNames: ["edge*"]}
---
apiVersion: v1
kind: Event
metadata: {name: looked, namespace: default}
type: Normal
reason: Looked
message: well
involvedObject: {kind: ApprovalRule, name: edges}
lastTimestamp: "2026-01-01T00:00:00Z"
"""
HIDDEN = "{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: default}, data: {key: aGlkZGVu}}"
PARTS = ("Name:         edges", "Labels:       a=b", "Kind:         ApprovalRule", "  Decides:", "    - Accept")


@pytest.fixture
async def named(hub: HubUnderTest) -> HubUnderTest:
    for name in ("edge1", "edge2", "shop1"):
        await hub.join(name)
    return hub


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the programs as they are installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = {
        "hubctl": "__main__ import main",
        "kubectl-hub": "plugin import main",
        "kubectl_complete-hub": "plugin import complete as main",
    }
    for name, call in calls.items():
        file = folder / name
        file.write_text(f"#!{sys.executable}\nfrom hub.cli.{call}\nmain()\n")
        file.chmod(0o755)
    return folder


async def at(hub: HubUnderTest, programs: Path, *command: str) -> Ended:
    path = os.pathsep.join((str(programs), os.environ["PATH"]))
    return await run(*command, HUBCTL_KUBECONFIG=str(await hub.admin()), HOME=str(hub.folder), PATH=path)


async def test_names_come_from_the_hub(named: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio  # noqa: PLC0415 - this test alone runs beside its hub

    monkeypatch.setenv("HUBCTL_KUBECONFIG", str(await named.admin()))

    async def words(*given: str) -> list[str]:
        return [line for line in await asyncio.to_thread(offered, given) if not line.startswith(":")]

    assert await words("accept", "edge") == ["edge1", "edge2"]
    assert await words("accept", "edge1", "") == ["edge2", "shop1"]
    assert await words("get", "clusters", "s") == ["shop1"]
    assert await words("get", "mcl/edge") == ["mcl/edge1", "mcl/edge2"]
    assert await words("describe", "cluster", "shop") == ["shop1"]
    assert "configmaps" in await words("get", "config")
    assert await words("get", "namespaces", "def") == ["default"]
    assert await words("--kubeconfig", "/absent", "accept", "") == []
    assert await words("--context", "") == ["muster"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not on the PATH")
async def test_bash_completes_names(named: HubUnderTest, programs: Path, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text((await at(named, programs, "hubctl", "completion", "bash")).out)
    line = COMPLETED.format(script=script, words="hubctl accept edge", at=2, name=programs / "hubctl")
    assert (await at(named, programs, "bash", "-c", line)).out.split() == ["edge1", "edge2"]


@pytest.mark.kubectl
async def test_kubectl_hub_is_hubctl_and_completes_as_it(named: HubUnderTest, programs: Path) -> None:
    said = await at(named, programs, "kubectl", "hub", "get", "clusters", "-o", "jsonpath={.items[*].metadata.name}")
    assert said.out == "edge1 edge2 shop1", said.err
    assert (await at(named, programs, "kubectl", "hub", "get", "cluster", "nope")).code == 3
    completed = await at(named, programs, "kubectl", "__complete", "hub", "accept", "edge")
    assert completed.out.splitlines() == ["edge1", "edge2", ":4"], completed.err


async def test_any_kind_is_described_with_its_events_and_secrets_by_size(named: HubUnderTest) -> None:
    path = await named.admin()
    applied = await hubctl_at(path, "apply", "-f", "-", given=LOOKED_AT)
    assert applied.code == 0, applied.err
    page = (await hubctl_at(path, "describe", "rule", "edges")).out
    for line in (*PARTS, "    - Kind: BootstrapCredential"):
        assert line in page.splitlines(), page
    assert "  2026-01-01T00:00:00Z   Normal   Looked   well" in page.splitlines(), page
    assert (await hubctl_at(path, "describe", "cluster/edge1")).out.startswith("Name: ")
    assert (await hubctl_at(path, "describe", "mcl", "edge1")).out.startswith("Name: ")
    wrong = await hubctl_at(path, "describe", "clustr", "edge1")
    assert (wrong.code, 'did you mean "cluster"?' in wrong.err) == (2, True)
    assert (await hubctl_at(path, "describe", "rule", "none")).code == 3

    assert (await hubctl_at(path, "apply", "-f", "-", given=HIDDEN)).code == 0
    page = (await hubctl_at(path, "describe", "secret", "s", "-n", "default")).out
    assert ("Key: 6 bytes" in page, "aGlkZGVu" in page, "hidden" in page) == (True, False, False)


V1ALPHA1 = "/apis/addon.open-cluster-management.io/v1alpha1/managedclusteraddons"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def enabled(hub: HubUnderTest) -> list[str]:
    return (await hub.hubctl("get", "addons", "-o", "name")).out.splitlines()


async def test_add_ons_are_enabled_shown_and_disabled_on_clusters(hub: HubUnderTest) -> None:
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
    _, shown = await (await admin_of(hub)).get(V1ALPHA1)
    assert {each["spec"]["installNamespace"] for each in shown["items"]} == {"elsewhere"}
    assert [(each["metadata"].get("annotations") or {}).get("a") for each in shown["items"]] == ["1", "1", None]
    gone = await hub.hubctl("addon", "disable", "proxy", "-l", "region=eu")
    assert (gone.code, gone.out.count("disabled")) == (0, 2), gone.err
    again = await hub.hubctl("addon", "disable", "proxy", "--clusters", "edge1")
    assert (again.code, again.out) == (0, 'add-on "proxy" is not enabled on cluster "edge1"\n')
    left = json.loads((await hub.hubctl("get", "addons", "-o", "json")).out)["items"]
    assert [each["metadata"]["namespace"] for each in left] == ["edge3"]

    for words in ((), ("--all", "--clusters", "edge1"), ("--clusters", "edge1", "-l", "a=b"), ("--all", "--annotate", "a")):
        assert (await hub.hubctl("addon", "enable", "proxy", *words)).code == 2, words
    nobody = await hub.hubctl("addon", "enable", "proxy", "--clusters", "edge1,edge9")
    assert (nobody.code != 0, "edge9" in nobody.err, len(await enabled(hub))) == (True, True, 1), "nothing is done by half"
    assert (await hub.hubctl("addon", "disable", "proxy", "-l", "a=b")).code != 0

    assert (await hub.hubctl("addon", "enable", "proxy", "--clusters", "edge1")).code == 0
    condition = {"type": "Available", "status": "False", "reason": "LeaseStopped", "message": "its lease is old"}
    patch = json.dumps({"status": {"conditions": [{**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    patched = await hub.kubectl("-n", "edge1", "patch", "mca", "proxy", "--subresource=status", "--type=merge", "-p", patch)
    assert patched.code == 0, patched.err
    header, row, _ = (await hub.hubctl("get", "addons")).out.splitlines()
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


async def test_resources_of_clusters_and_load_of_replicas_are_shown_and_summed(hub: HubUnderTest) -> None:
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

    load = Load(watches=3, cpu=0.25, memory=128 * 2**20, ahead=timedelta())
    told = Replica("hub-0", "here", "i1", "1", "g", "h", EPOCH, EPOCH, sessions=7, ready=True)
    await hub.store.run(replicas.begin, told)
    await hub.store.run(lambda tx: tx.replicas.put(replace(told, load=load, started=tx.now, seen=tx.now)))
    header, _own, row, total = (await hub.hubctl("top", "replicas")).out.splitlines()
    assert header.split()[:7] == ["NAME", "STATE", "LEADER", "SESSIONS", "WATCHES", "CPU", "MEMORY"]
    assert row.split()[:6] == ["hub-0", "Ready", "7", "3", "250m", "128Mi"]
    assert total.split() == ["2", "replicas", "7", "3"]


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
    assert (await (await admin_of(hub)).ask("POST", "/api/v1/namespaces/default/events", made))[0] == 201


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
