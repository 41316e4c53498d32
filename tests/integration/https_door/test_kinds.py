"""A real kubectl does to every kind what people do, against a hub's door: one row per kind."""

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.controllers.clusters.deletion import Namespaces
from hub.registry.kinds import write_paths
from hubctl.errors import DONE, FAILED
from machinery.product import GROUP_SUFFIX
from tests.checks import CASE_FILES
from tests.integration.https_door.conftest import HubUnderTest, admin_of

pytestmark = pytest.mark.kubectl
ADDON = f"addon.{GROUP_SUFFIX}"


@dataclass(frozen=True, slots=True)
class Row:
    """A kind: its object, what its wide table begins with, a word of its description, and a change of the object."""

    word: str
    document: dict[str, Any]
    columns: str
    described: str
    changed: dict[str, Any]

    @property
    def target(self) -> str:
        return f"{self.word}/{self.document['metadata']['name']}"


ROWS = tuple(Row(**row) for row in yaml.safe_load((CASE_FILES / "kinds.yaml").read_text()))
BINDING, SET, NEWER_EVENT, OLDER_ADD_ON = (
    next(row.document for row in ROWS if row.word == word)
    for word in ("mclsetbinding", "mclset", "events.v1.events.k8s.io", f"managedclusteraddons.v1alpha1.{ADDON}")
)
REGISTRATION, IN_TOOLS = {"type": "kubeClient", "kubeClient": {"driver": "csr"}}, {"spec": {"installNamespace": "tools"}}


def merged(document: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    both = {**document, **change}
    for name, value in change.items():
        if isinstance(value, dict) and isinstance(document.get(name), dict):
            both[name] = merged(document[name], value)
    return both


async def test_kubectl_applies_shows_waits_labels_edits_and_deletes_every_kind(hub: HubUnderTest, tmp_path: Path) -> None:
    """One kubectl for all kinds at each step."""
    file, targets, count = tmp_path / "things.yaml", [row.target for row in ROWS], len(ROWS)
    words = ",".join(row.word for row in ROWS)

    async def kubectl(*arguments: str) -> str:
        return await hub.output("kubectl", *arguments)

    file.write_text(yaml.safe_dump_all(row.document for row in ROWS))
    assert (await kubectl("apply", "-f", str(file))).count(" created") == count
    tables = (await kubectl("get", words, "-o", "wide")).split("\n\n")
    assert len(tables) == count
    for row, table in zip(ROWS, tables, strict=True):
        assert " ".join(table.split("\n")[0].split()).startswith(row.columns), table
        assert f"/{row.document['metadata']['name']}" in table
    waiting = asyncio.create_task(kubectl("wait", *targets, "--for=jsonpath={.metadata.labels.tier}=gold", "--timeout=60s"))
    file.write_text(yaml.safe_dump_all(merged(row.document, row.changed) for row in ROWS))
    assert (await kubectl("apply", "-f", str(file))).count(" configured") == count
    assert (await kubectl("label", *targets, "tier=gold")).count(" labeled") == count
    assert (await waiting).count(" condition met") == count
    assert (await kubectl("annotate", *targets, "note=kept")).count(" annotated") == count
    assert (await kubectl("edit", *targets)).count(" edited") == count
    documents = json.loads(await kubectl("get", *targets, "-o", "json"))["items"]
    for row, document in zip(ROWS, documents, strict=True):
        metadata = document["metadata"]
        assert (metadata["labels"]["tier"], metadata["annotations"]["note"]) == ("silver", "kept"), row.word
        assert merged(document, row.changed) == document, row.word
    chosen = (await kubectl("get", words, "-l", "tier=silver", "-o", "name")).split()
    assert len({*chosen}) == count + 2, "both events are in both of their groups"
    applied = await kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    assert applied.count("serverside-applied") == count
    pages = re.split(r"^Name:", await kubectl("describe", *targets), flags=re.MULTILINE)[1:]
    for row, page in zip(ROWS, pages, strict=True):
        assert row.described in page, page
    assert (await hub.kubectl(f"create -f {file}")).err.count("AlreadyExists") == count
    assert (await kubectl("delete", "-f", str(file), "--wait=false")).count(" deleted") == count
    assert (await hub.kubectl("get", *targets)).err.count("NotFound") == count - 1, "a namespace goes with its content"


async def test_a_deleted_namespace_takes_its_content_along_unless_it_is_a_standing_one(hub: HubUnderTest) -> None:
    await hub.runs(
        ("kubectl delete ns kube-system", FAILED, "this namespace may not be deleted"),
        ("kubectl create ns team", DONE, ""),
        ("kubectl create secret generic login -n team --from-literal=a=b", DONE, ""),
    )
    deleting = asyncio.create_task(hub.kubectl("delete ns team --timeout=20s"))
    await hub.output("kubectl wait ns team --for=jsonpath={.status.phase}=Terminating --timeout=10s")
    await hub.runs(("kubectl create configmap late -n team", FAILED, "because it is being terminated"))
    subject = Namespaces(hub.store)
    while await subject.reconcile("team") is not None:
        pass
    assert (await deleting).code == DONE
    await hub.runs(("kubectl get ns team", FAILED, "NotFound"))
    assert await hub.output("kubectl get secrets -A --no-headers") == ""


async def test_objects_of_two_versions_are_one_and_sets_are_checked(hub: HubUnderTest, tmp_path: Path) -> None:
    served = (await hub.output("kubectl api-resources -o name")).split()
    assert {str(resource) for resource in write_paths(GROUP_SUFFIX)} <= set(served)

    file = tmp_path / "thing.yaml"
    file.write_text(yaml.safe_dump(merged(BINDING, {"spec": {"clusterSet": "other"}})))
    await hub.runs((f"kubectl create -f {file}", FAILED, "must have the same name"))
    expressions = [{"key": "region", "operator": "Near"}, {"key": "region", "operator": "In"}]
    selector = {"selectorType": "LabelSelector", "labelSelector": {"matchExpressions": expressions}}
    file.write_text(yaml.safe_dump({**SET, "spec": {"clusterSelector": selector}}))
    await hub.runs(
        (f"kubectl create -f {file}", FAILED, "not a valid selector operator"),
        (f"kubectl create -f {file}", FAILED, "must be specified when"),
    )
    file.write_text(yaml.safe_dump(merged(NEWER_EVENT, {"metadata": {"name": "thing"}, "note": "well"})))
    await hub.output(f"kubectl create -f {file}")
    core = json.loads(await hub.output("kubectl get events thing -n default -o json"))
    assert (core["apiVersion"], core["message"], core["involvedObject"]) == ("v1", "well", NEWER_EVENT["regarding"])
    chosen = "kubectl get events.v1.events.k8s.io -A --field-selector regarding.name=edge1 -o name"
    await hub.runs((chosen, DONE, "event.events.k8s.io/thing\n"), ("kubectl events -n default", DONE, "ManagedCluster/edge1"))
    file.write_text(yaml.safe_dump({**OLDER_ADD_ON, **IN_TOOLS}))
    admin = await admin_of(hub)
    _, page = await admin.get(f"/apis/{ADDON}/v1beta1/managedclusteraddons")
    query = f"watch=1&timeoutSeconds=20&resourceVersion={page['metadata']['resourceVersion']}"
    await hub.output(f"kubectl create -f {file}")
    status = {"registrations": [{"signerName": "kubernetes.io/kube-apiserver-client"}], "kubeClientDriver": "csr"}
    patch = f"kubectl patch managedclusteraddons.v1alpha1.{ADDON} other -n default --subresource=status --type=merge -p"
    await hub.output(patch, json.dumps({"status": status}))
    await hub.output("kubectl delete mca other -n default")

    async def seen(version: str) -> list[dict[str, Any]]:
        async with admin.watch(f"/apis/{ADDON}/{version}/namespaces/default/managedclusteraddons?{query}") as watch:
            return [await watch.event() for _ in range(3)]

    new_ones, old_ones = await asyncio.gather(seen("v1beta1"), seen("v1alpha1"))
    for version, events in (("v1beta1", new_ones), ("v1alpha1", old_ones)):
        assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
        assert {event["object"]["apiVersion"] for event in events} == {f"{ADDON}/{version}"}
    assert new_ones[1]["object"]["status"]["registrations"] == [REGISTRATION]
    assert old_ones[1]["object"]["status"]["kubeClientDriver"] == "csr"
    assert old_ones[0]["object"]["spec"] == {"installNamespace": "tools"}
