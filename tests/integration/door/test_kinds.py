"""A real kubectl does to every kind what people do, against a hub's door: one row per kind."""

import asyncio
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.apiserver.writepaths import write_paths
from hub.controllers.namespaces import Namespaces
from hub.domain import cluster as rules
from hub.domain.brake import Brake, encoded
from hub.domain.replica import Replica
from hub.ports import Transaction
from hub.services import brake, clusters, replicas
from machinery.identity import ClusterName
from machinery.product import GROUP_SUFFIX
from tests.integration.door.conftest import Ended, HubUnderTest, run

pytestmark = pytest.mark.kubectl
CLUSTER, ADDON = f"cluster.{GROUP_SUFFIX}", f"addon.{GROUP_SUFFIX}"
ANNOTATION = "annotations"


@dataclass(frozen=True, slots=True)
class Row:
    """A kind: its object, what its wide table begins with, and a word of its description."""

    word: str
    document: dict[str, Any]
    columns: tuple[str, ...]
    described: str
    changed: dict[str, Any]
    """A part of the object, as `kubectl apply` changes it."""
    watched: str
    """A jsonpath that the change makes true, for `kubectl wait`."""

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def namespace(self) -> tuple[str, ...]:
        found = self.document["metadata"].get("namespace")
        return ("-n", found) if found else ()


def thing(api_version: str, kind: str, namespace: str = "default", **parts: Any) -> dict[str, Any]:
    metadata = {"name": "thing", **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **parts}


ABOUT = {"kind": "ManagedCluster", "name": "edge1"}
PLACED = {"kind": "Event", "reason": "Tried", "type": "Normal"}
LONG_AGO = "2026-01-01T00:00:00.000000Z"
NEW_EVENT: dict[str, Any] = {
    "action": "Try",
    "eventTime": LONG_AGO,
    "regarding": ABOUT,
    "reason": "Tried",
    "reportingController": "test",
    "reportingInstance": "here",
    "type": "Normal",
}
REGISTRATION = {"type": "kubeClient", "kubeClient": {"driver": "csr"}}
ROWS = (
    Row(
        "ns",
        thing("v1", "Namespace", ""),
        ("NAME", "STATUS", "AGE"),
        "Active",
        {"metadata": {"labels": {"a": "b"}}},
        "{.metadata.labels.a}=b",
    ),
    Row("cm", thing("v1", "ConfigMap", data={"a": "1"}), ("NAME", "DATA", "AGE"), "Data", {"data": {"a": "2"}}, "{.data.a}=2"),
    Row(
        "secret",
        thing("v1", "Secret", data={"a": "MQ=="}),
        ("NAME", "TYPE", "DATA", "AGE"),
        "a:  1 bytes",
        {"data": {"a": "Mg=="}},
        "{.data.a}=Mg==",
    ),
    Row(
        "sa",
        thing("v1", "ServiceAccount"),
        ("NAME", "SECRETS", "AGE"),
        "Tokens",
        {"automountServiceAccountToken": False},
        "{.automountServiceAccountToken}=false",
    ),
    Row(
        "events",
        thing("v1", "Event", involvedObject=ABOUT, reason="Tried", type="Normal"),
        ("LAST", "SEEN", "TYPE", "REASON"),
        "Tried",
        {"message": "x"},
        "{.message}=x",
    ),
    Row(
        "events.v1.events.k8s.io",
        thing("events.k8s.io/v1", "Event", **NEW_EVENT),
        ("LAST", "SEEN", "TYPE", "REASON"),
        "Tried",
        {"note": "x"},
        "{.note}=x",
    ),
    Row(
        "mclset",
        thing(f"{CLUSTER}/v1beta2", "ManagedClusterSet", ""),
        ("NAME", "EMPTY", "AGE"),
        "Selector Type:  LabelSelector",
        {"spec": {"clusterSelector": {"selectorType": "LabelSelector", "labelSelector": {}}}},
        "{.spec.clusterSelector.selectorType}=LabelSelector",
    ),
    Row(
        "mclsetbinding",
        thing(f"{CLUSTER}/v1beta2", "ManagedClusterSetBinding", spec={"clusterSet": "thing"}),
        ("NAME", "AGE"),
        "Cluster Set",
        {"metadata": {"labels": {"a": "b"}}},
        "{.metadata.labels.a}=b",
    ),
    Row(
        "mca",
        thing(f"{ADDON}/v1beta1", "ManagedClusterAddOn", spec={}),
        ("NAME", "AVAILABLE", "DEGRADED", "PROGRESSING"),
        "Spec",
        {"spec": {"configs": [{"resource": "r", "name": "conf"}]}},
        "{.spec.configs[0].name}=conf",
    ),
    Row(
        f"managedclusteraddons.v1alpha1.{ADDON}",
        thing(f"{ADDON}/v1alpha1", "ManagedClusterAddOn", spec={}),
        ("NAME", "AVAILABLE", "DEGRADED", "PROGRESSING"),
        "Install Namespace:  tools",
        {"spec": {"installNamespace": "tools"}},
        "{.spec.installNamespace}=tools",
    ),
    Row(
        "cma",
        thing(f"{ADDON}/v1beta1", "ClusterManagementAddOn", "", spec={}),
        ("NAME", "DISPLAY", "NAME"),
        "Manual",
        {"spec": {"addOnMeta": {"displayName": "Metrics"}}},
        "{.spec.addOnMeta.displayName}=Metrics",
    ),
    Row(
        f"clustermanagementaddons.v1alpha1.{ADDON}",
        thing(f"{ADDON}/v1alpha1", "ClusterManagementAddOn", "", spec={}),
        ("NAME", "DISPLAY", "NAME", "CRD", "NAME"),
        "Manual",
        {"spec": {"addOnConfiguration": {"crdName": "c"}}},
        "{.spec.addOnConfiguration.crdName}=c",
    ),
)
EDITOR = "sed -i -e s/gold/silver/"


def merged(document: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    both = {**document, **change}
    for name, value in change.items():
        if isinstance(value, dict) and isinstance(document.get(name), dict):
            both[name] = merged(document[name], value)
    return both


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.word)
async def test_kubectl_does_to_it_what_people_do(row: Row, hub: HubUnderTest, tmp_path: Path) -> None:
    file, target = tmp_path / "thing.yaml", (row.word, row.name, *row.namespace)

    async def kubectl(*arguments: str) -> Ended:
        given = (f"--kubeconfig={await hub.admin()}", f"--cache-dir={tmp_path / 'cache'}")
        ended = await run("kubectl", *given, *arguments, KUBE_EDITOR=EDITOR)
        assert ended.code == 0, (arguments, ended.err)
        return ended

    file.write_text(yaml.safe_dump(row.document))
    assert "created" in (await kubectl("apply", "-f", str(file))).out
    table = (await kubectl("get", row.word, *row.namespace, "-o", "wide")).out.splitlines()
    assert tuple(table[0].split()[: len(row.columns)]) == row.columns
    assert any(row.name in line.split() for line in table[1:])
    file.write_text(yaml.safe_dump(merged(row.document, row.changed)))
    assert "configured" in (await kubectl("apply", "-f", str(file))).out
    await kubectl("wait", *target, f"--for=jsonpath={row.watched}", "--timeout=10s")
    await kubectl("label", *target, "tier=gold")
    await kubectl("annotate", *target, "note=kept")
    assert "edited" in (await kubectl("edit", *target)).out
    document = json.loads((await kubectl("get", *target, "-o", "json")).out)
    assert (document["metadata"]["labels"]["tier"], document["metadata"][ANNOTATION]["note"]) == ("silver", "kept")
    assert (await kubectl("get", row.word, *row.namespace, "-l", "tier=silver", "-o", "name")).out.count(row.name) == 1
    applied = await kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    assert "serverside-applied" in applied.out
    assert row.described in (await kubectl("describe", *target)).out
    assert (await hub.kubectl("create", "-f", str(file))).err.count("AlreadyExists") == 1
    assert "deleted" in (await kubectl("delete", *target, "--wait=false")).out
    if row.word != "ns":
        assert "NotFound" in (await hub.kubectl("get", *target)).err


async def test_a_deleted_namespace_takes_its_content_along(hub: HubUnderTest) -> None:
    assert (await hub.kubectl("create", "ns", "team")).code == 0
    assert (await hub.kubectl("create", "secret", "generic", "login", "-n", "team", "--from-literal=a=b")).code == 0
    deleting = asyncio.create_task(hub.kubectl("delete", "ns", "team", "--timeout=20s"))
    terminating = await hub.kubectl("wait", "ns", "team", "--for=jsonpath={.status.phase}=Terminating", "--timeout=10s")
    assert terminating.code == 0, terminating.err
    refused = await hub.kubectl("create", "configmap", "late", "-n", "team")
    assert "because it is being terminated" in refused.err
    subject = Namespaces(hub.store)
    while await subject.reconcile("team") is not None:
        pass
    assert (await deleting).code == 0
    assert "NotFound" in (await hub.kubectl("get", "ns", "team")).err
    assert (await hub.kubectl("get", "secrets", "-A", "--no-headers")).out == ""


async def test_a_standing_namespace_is_not_deleted(hub: HubUnderTest) -> None:
    assert "this namespace may not be deleted" in (await hub.kubectl("delete", "ns", "kube-system")).err


async def test_one_write_to_an_add_on_is_one_event_in_each_version(hub: HubUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "addon.yaml"
    old = thing(f"{ADDON}/v1alpha1", "ManagedClusterAddOn", spec={"installNamespace": "tools"})
    file.write_text(yaml.safe_dump(old))
    base = "namespaces/default/managedclusteraddons?watch=1&timeoutSeconds=3&resourceVersion="
    revision = json.loads((await hub.kubectl("get", "mca", "-A", "-o", "json")).out)["metadata"]["resourceVersion"] or "0"
    page = json.loads((await hub.kubectl("get", "--raw", f"/apis/{ADDON}/v1beta1/managedclusteraddons")).out)
    revision = page["metadata"]["resourceVersion"]
    assert (await hub.kubectl("create", "-f", str(file))).code == 0
    patch = json.dumps(
        {"status": {"registrations": [{"signerName": "kubernetes.io/kube-apiserver-client"}], "kubeClientDriver": "csr"}}
    )
    arguments = ("--subresource=status", "--type=merge", "-p", patch)
    patched = await hub.kubectl("patch", f"managedclusteraddons.v1alpha1.{ADDON}", "thing", "-n", "default", *arguments)
    assert patched.code == 0, patched.err
    assert (await hub.kubectl("delete", "mca", "thing", "-n", "default")).code == 0

    async def seen(version: str) -> list[dict[str, Any]]:
        raw = await hub.kubectl("get", "--raw", f"/apis/{ADDON}/{version}/{base}{revision}")
        return [json.loads(line) for line in raw.out.splitlines()]

    new_ones, old_ones = await asyncio.gather(seen("v1beta1"), seen("v1alpha1"))
    for version, events in (("v1beta1", new_ones), ("v1alpha1", old_ones)):
        assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
        assert {event["object"]["apiVersion"] for event in events} == {f"{ADDON}/{version}"}
    assert new_ones[1]["object"]["status"]["registrations"] == [REGISTRATION]
    assert old_ones[1]["object"]["status"]["kubeClientDriver"] == "csr"
    assert old_ones[0]["object"]["spec"] == {"installNamespace": "tools"}


async def test_an_event_of_either_group_is_one_object(hub: HubUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "event.yaml"
    file.write_text(yaml.safe_dump(thing("events.k8s.io/v1", "Event", **NEW_EVENT, note="well")))
    assert (await hub.kubectl("create", "-f", str(file))).code == 0
    core = json.loads((await hub.kubectl("get", "events", "thing", "-n", "default", "-o", "json")).out)
    assert (core["apiVersion"], core["message"], core["involvedObject"]) == ("v1", "well", ABOUT)
    chosen = await hub.kubectl("get", "events.v1.events.k8s.io", "-A", "--field-selector", "regarding.name=edge1", "-o", "name")
    assert chosen.out.strip() == "event.events.k8s.io/thing"
    shown = await hub.kubectl("events", "-n", "default")
    assert "managedcluster/edge1" in shown.out.lower(), shown.err


async def test_a_binding_must_bear_the_name_of_its_set(hub: HubUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "binding.yaml"
    file.write_text(yaml.safe_dump(thing(f"{CLUSTER}/v1beta2", "ManagedClusterSetBinding", spec={"clusterSet": "other"})))
    assert "must have the same name" in (await hub.kubectl("create", "-f", str(file))).err


async def test_a_selector_of_a_set_must_be_one(hub: HubUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "set.yaml"
    expressions = [{"key": "region", "operator": "Near"}, {"key": "region", "operator": "In"}]
    selector = {"selectorType": "LabelSelector", "labelSelector": {"matchExpressions": expressions}}
    file.write_text(yaml.safe_dump(thing(f"{CLUSTER}/v1beta2", "ManagedClusterSet", "", spec={"clusterSelector": selector})))
    refused = (await hub.kubectl("create", "-f", str(file))).err
    assert "not a valid selector operator" in refused
    assert "must be specified when" in refused


async def test_every_kind_that_is_stored_is_served(hub: HubUnderTest) -> None:
    served = (await hub.kubectl("api-resources", "-o", "name")).out.split()
    assert {str(resource) for resource in write_paths(GROUP_SUFFIX)} <= set(served)


async def test_the_fleet_is_counted_by_the_database(hub: HubUnderTest) -> None:
    for name in ("edge1", "edge2", "edge3"):
        await hub.join(name)
    for name, status in (("edge1", "True"), ("edge2", "Unknown")):
        assert (await hub.hubctl("accept", name)).code == 0
        reason = {"reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        conditions = [{"type": "ManagedClusterConditionAvailable", "status": status, **reason}]
        patch = json.dumps({"status": {"conditions": conditions, "version": {"kubernetes": "v1.31"}}})
        patched = await hub.kubectl("patch", "mcl", name, "--subresource=status", "--type=merge", "-p", patch)
        assert patched.code == 0, patched.err
    table = (await hub.kubectl("get", "fleet")).out.splitlines()
    counted = ["NAME", "CLUSTERS", "ACCEPTED", "WAITING", "AVAILABLE", "UNAVAILABLE", "UNKNOWN", "NEVER", "BRAKE"]
    assert table[0].split() == counted
    assert table[1].split() == ["fleet", "3", "2", "1", "1", "0", "1", "1", "off"]
    status = json.loads((await hub.kubectl("get", "clustersummary", "fleet", "-o", "json")).out)["status"]
    assert status["versions"] == {"v1.31": 2}
    assert "NotFound" in (await hub.kubectl("get", "clustersummary", "other")).err
    assert (await hub.kubectl("delete", "clustersummary", "fleet")).code == 1


async def test_the_replicas_of_the_hub_are_shown_and_nobody_writes_them(hub: HubUnderTest) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    row = Replica("hub-0", "here", "i1", "1.2.3", "127.0.0.1:8443", "127.0.0.1:6443", epoch, epoch, sessions=7, ready=True)
    await hub.store.run(replicas.begin, row)
    await hub.store.run(replicas.begin, replace(row, name="hub-1", draining=True))
    table = (await hub.kubectl("get", "hubreplicas", "-o", "wide")).out.splitlines()
    assert table[0].split("  ")[0] == "NAME"
    assert [line.split()[:3] for line in table[1:]] == [["hub-0", "Ready", "7"], ["hub-1", "Draining", "7"]]
    assert table[1].split()[-2:] == ["127.0.0.1:8443", "127.0.0.1:6443"]
    assert (await hub.hubctl("get", "replicas")).out.splitlines()[1].split()[:2] == ["hub-0", "Ready"]
    status = json.loads((await hub.kubectl("get", "hubreplica", "hub-1", "-o", "json")).out)["status"]
    assert (status["version"], status["state"]) == ("1.2.3", "Draining")
    assert "NotFound" in (await hub.kubectl("get", "hubreplica", "other")).err
    assert (await hub.kubectl("delete", "hubreplica", "hub-0")).code == 1


async def test_changes_of_availability_are_shown(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    assert (await hub.hubctl("accept", "edge1")).code == 0
    for condition in (rules.AVAILABLE, rules.UNAVAILABLE, rules.AVAILABLE, rules.SILENT):
        await hub.store.run(clusters.set_condition, ClusterName("edge1"), condition, "somebody")
    page = (await hub.hubctl("describe", "cluster", "edge1")).out
    rows = [line.split() for line in page[page.index("Availability Changes:") :].splitlines()[2:6]]
    assert [row[1:] for row in rows] == [
        ["True", "Unknown", "ManagedClusterLeaseUpdateStopped", "somebody"],
        ["False", "True", "ManagedClusterAvailable", "somebody"],
        ["True", "False", "ManagedClusterKubeAPIServerUnavailable", "somebody"],
        ["<none>", "True", "ManagedClusterAvailable", "somebody"],
    ]
    table = (await hub.kubectl("get", "clustertransitions", "-n", "edge1")).out.splitlines()
    assert len(table) == 5
    assert table[0].split()[:2] == ["NAME", "TIME"]
    one = (await hub.kubectl("get", "clustertransitions", "-n", "edge1", table[1].split()[0], "-o", "json")).out
    assert (json.loads(one)["from"], json.loads(one)["to"]) == ("True", "Unknown")
    assert "-n CLUSTER" in (await hub.kubectl("get", "clustertransitions", "-A")).err
    assert (await hub.kubectl("delete", "clustertransitions", "-n", "edge1", table[1].split()[0])).code == 1


async def test_an_operator_sees_the_brake_and_releases_it(hub: HubUnderTest) -> None:
    def put_on(tx: Transaction) -> None:
        tx.facts.set(brake.FACT, encoded(Brake(since=tx.now, silent=30, fleet=100)))

    assert "does not hold" in (await hub.hubctl("release-brake")).out
    await hub.store.run(put_on)
    assert "held for" in (await hub.hubctl("get", "fleet")).out
    status = json.loads((await hub.kubectl("get", "fleet", "-o", "json")).out)["items"][0]["status"]
    assert "30 of 100" in status["brake"]["message"]
    dry = await hub.kubectl(
        "patch", "fleet", "fleet", "--type=merge", "-p", '{"spec":{"releaseBrake":true}}', "--dry-run=server"
    )
    assert dry.code == 0, dry.err
    assert "held for" in (await hub.hubctl("get", "fleet")).out
    assert "released" in (await hub.hubctl("release-brake")).out
    assert not (await hub.store.read(brake.now)).holds
    assert "BrakeReleased" in (await hub.kubectl("get", "events", "-A")).out
