"""A real kubectl against the HTTPS door: what people do to every kind, one row per kind, and what a session of work needs."""

import asyncio
import json
import re
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.controllers.clusters.deletion import Namespaces
from hub.registry import certificates
from hub.registry.kinds import write_paths
from hubctl.errors import DONE, FAILED
from machinery import pki
from machinery.client import kubeconfig
from machinery.client.kubeconfig import HubEndpoint
from machinery.identity import HubId
from machinery.product import GROUP_SUFFIX
from tests.checks import CASE_FILES
from tests.integration.https_door.conftest import LIFETIMES, HubUnderTest, Running, admin_of, hub_with

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
    for row, document in zip(ROWS, json.loads(await kubectl("get", *targets, "-o", "json"))["items"], strict=True):
        metadata = document["metadata"]
        assert (metadata["labels"]["tier"], metadata["annotations"]["note"]) == ("silver", "kept"), row.word
        assert merged(document, row.changed) == document, row.word
    chosen = (await kubectl("get", words, "-l", "tier=silver", "-o", "name")).split()
    assert len({*chosen}) == count + 2, "both events are in both of their groups"
    assert (await kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))).count("serverside-applied") == count
    for row, page in zip(ROWS, re.split(r"^Name:", await kubectl("describe", *targets), flags=re.MULTILINE)[1:], strict=True):
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


async def test_watch_prints_a_row_for_every_change_and_the_beat_lease_is_renewed(hub: HubUnderTest, tmp_path: Path) -> None:
    await hub.join("edge1")
    lease = json.loads(await hub.output("kubectl get lease -n edge1 managed-cluster-lease -o json"))
    file = tmp_path / "lease.json"
    file.write_text(json.dumps({**lease, "spec": {**lease["spec"], "renewTime": "2020-01-01T00:00:00.000000Z"}}))
    await hub.output(f"kubectl replace -f {file}")
    after = json.loads(await hub.output("kubectl get lease -n edge1 managed-cluster-lease -o json"))
    assert after["spec"]["renewTime"] > lease["spec"]["renewTime"], "the hub's time counts, not the client's"
    assert int(after["metadata"]["resourceVersion"]) > int(lease["metadata"]["resourceVersion"])
    await hub.runs(
        (f"kubectl replace -f {file}", FAILED, "the object has been modified"),
        ("kubectl delete lease -n edge1 managed-cluster-lease", FAILED, "heartbeat"),
    )
    arguments = (f"--kubeconfig={await hub.admin()}", f"--cache-dir={hub.folder / 'cache'}", "get", "mcl", "-w", "--no-headers")
    watching = Running(await asyncio.create_subprocess_exec("kubectl", *arguments, stdout=PIPE, stderr=PIPE))
    for name, act in (("edge1", None), ("edge2", hub.join("edge2")), ("edge1", hub.hubctl("accept edge1"))):
        if act is not None:
            await act
        assert (await watching.line()).split()[0] == name
    await watching.end()


SUFFIX = "fleet.example.org"


async def test_every_group_and_program_uses_the_suffix_that_the_operator_chose(tmp_path: Path) -> None:
    async with hub_with(tmp_path, api_group_suffix=SUFFIX) as hub:
        versions = (await hub.output("kubectl api-versions")).split()
        groups = {"cluster": "v1", "addon": "v1beta1", "hub": "v1alpha1"}
        assert {f"addon.{SUFFIX}/v1alpha1", *(f"{name}.{SUFFIX}/{version}" for name, version in groups.items())} <= {*versions}
        assert not [version for version in versions if GROUP_SUFFIX in version]

        await hub.join("edge1")
        assert json.loads(await hub.output("kubectl get mcl edge1 -o json"))["apiVersion"] == f"cluster.{SUFFIX}/v1"
        await hub.output("kubectl patch mcl edge1 --type=merge -p", '{"spec":{"hubAcceptsClient":true}}')
        addon = {"kind": "ManagedClusterAddOn", "metadata": {"name": "metrics", "namespace": "edge1"}, "spec": {}}
        file, output = tmp_path / "addon.yaml", tmp_path / "bootstrap.kubeconfig"
        file.write_text(yaml.safe_dump({"apiVersion": f"addon.{GROUP_SUFFIX}/v1beta1", **addon}))
        await hub.runs((f"kubectl apply -f {file}", FAILED, "no matches for kind"))
        file.write_text(yaml.safe_dump({"apiVersion": f"addon.{SUFFIX}/v1alpha1", **addon}))
        await hub.output(f"kubectl apply -f {file}")
        stored = json.loads(await hub.output("kubectl get mca -n edge1 metrics -o json"))
        assert stored["apiVersion"] == f"addon.{SUFFIX}/v1beta1"

        key = pki.generate_key()
        issued = await hub.store.run(certificates.admit_operator, "admin", pki.public_key_of(key), hub.issuer, LIFETIMES)
        endpoint = HubEndpoint("127.0.0.1:8443", HubId("h"), group_suffix=SUFFIX)
        await hub.runs(
            ("kubectl get managedclusters -o name", DONE, f"managedcluster.cluster.{SUFFIX}/edge1\n"),
            ("hubctl get clusters -o name", DONE, f"managedcluster.cluster.{SUFFIX}/edge1\n"),
            ("hubctl deny edge1", DONE, ""),
            (f"hubctl create bootstrap-kubeconfig --cluster edge2 --allow-loopback -o {output}", DONE, ""),
            path=hub.kubeconfig("operator", issued, key, endpoint=endpoint),
        )
        assert kubeconfig.read_kubeconfig(output).require_endpoint().group_suffix == SUFFIX


async def test_kubectl_creates_kinds_without_patch_and_gets_all_and_scales_as_with_a_kube_apiserver(hub: HubUnderTest) -> None:
    attributes = {"resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": "default"}}
    specs = {
        "LocalSubjectAccessReview": {"user": "ann", **attributes},
        "SelfSubjectAccessReview": attributes,
        "SelfSubjectRulesReview": {"namespace": "default"},
        "SubjectAccessReview": {"user": "ann", **attributes},
        "TokenReview": {"token": "t"},
        "BootstrapCredential": {"token": True, "clusterName": "edge1"},
        "SelfSubjectReview": None,
    }
    refused = ("Revocation", "TokenCredentialRequest")  # by their schemas, for want of a spec
    listed = (await hub.output("kubectl api-resources --no-headers -o wide")).splitlines()
    rows = [re.split(r" {2,}", line) for line in listed if "create" in line and "patch" not in line]
    found = {row[-2] if row[-1].startswith("create") else row[-3]: row for row in rows}
    assert set(found) == {*specs, *refused}, "every kind without PATCH"
    wrong = {}
    for kind, row in found.items():
        version = next(part for part in row if "v1" in part)
        document = {"apiVersion": version, "kind": kind, "metadata": {"namespace": "default"}}
        document |= {"spec": specs.get(kind)} if specs.get(kind) else {}
        if kind in ("BootstrapCredential", "Revocation"):
            document["metadata"] = {"generateName": "bootstrap-"}
        file = hub.folder / f"{kind}.json"
        file.write_text(json.dumps(document))
        ended = await hub.kubectl(f"create -f {file}")
        if "failed to" in ended.err or (ended.code != 0) is not (kind in refused):
            wrong[kind] = ended
    assert wrong == {}

    await hub.join("edge1")
    everything = await hub.kubectl("get all -A")
    assert (everything.code, everything.err) == (0, "No resources found\n")
    await hub.runs(("kubectl scale mcl edge1 --replicas=2", FAILED, "the server could not find the requested resource"))
