"""A real kubectl applies, diffs, edits and replaces: on the API server in memory, on the hub's objects, on a hollow cluster."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hollow.cluster import HollowCluster
from machinery.apiserver.access import EveryoneIsAdmin
from tests.fakes.golden_hub import HubWorld
from tests.fakes.golden_world import MemoryWorld
from tests.fakes.kubectl import Kubectl, Said

pytestmark = pytest.mark.kubectl
GROUP = "cluster.open-cluster-management.io"
APPLIED = f"managedcluster.{GROUP}/applied serverside-applied"


class Applying:
    """kubectl with one cluster that its commands are about."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._kubectl = Kubectl(directory, url)

    async def __call__(self, *arguments: str, given: str = "") -> Said:
        return await self._kubectl(*arguments, given=given)

    def write(self, name: str = "applied", /, *, labels: dict[str, str] | None = None, **spec: Any) -> str:
        """A file with a ManagedCluster; returns its name."""
        metadata = {"name": name, **({"labels": labels} if labels is not None else {})}
        document = {"apiVersion": f"{GROUP}/v1", "kind": "ManagedCluster", "metadata": metadata, "spec": spec}
        (self._directory / "cluster.yaml").write_text(yaml.safe_dump(document))
        return "cluster.yaml"

    async def stored(self, kind: str = "managedcluster", name: str = "applied") -> dict[str, Any]:
        said = await self("get", kind, name, "-o", "json", "--show-managed-fields")
        document: dict[str, Any] = json.loads(said.output)
        return document

    async def holders(self) -> dict[str, Any]:
        """By manager and operation, the fields."""
        entries = (await self.stored())["metadata"]["managedFields"]
        return {f"{entry['manager']} {entry['operation']}": entry["fieldsV1"] for entry in entries}


@pytest.fixture(params=["memory", "hub"])
async def kubectl(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Applying]:
    everyone = EveryoneIsAdmin()
    world = MemoryWorld(everyone) if request.param == "memory" else HubWorld(tmp_path, everyone)
    await world.start()
    yield Applying(tmp_path, world.url)
    await world.close()


async def test_server_side_apply_lives_from_create_to_removal_of_a_field(kubectl: Applying) -> None:
    file = kubectl.write(labels={"region": "eu", "tier": "gold"}, hubAcceptsClient=False, leaseDurationSeconds=30)
    assert (await kubectl("apply", "--server-side", "-f", file)).lines == [APPLIED]
    created = await kubectl.stored()
    assert "managedFields" not in (await kubectl("get", "managedcluster", "applied", "-o", "yaml")).output

    assert (await kubectl("apply", "--server-side", "-f", file)).lines == [APPLIED]
    assert await kubectl.stored() == created

    file = kubectl.write(labels={"region": "eu"}, hubAcceptsClient=True)
    assert (await kubectl("apply", "--server-side", "-f", file)).exit == 0
    changed = await kubectl.stored()
    assert changed["metadata"]["labels"] == {"region": "eu"}
    assert changed["spec"] == {"hubAcceptsClient": True, "leaseDurationSeconds": 60}
    assert await kubectl.holders() == {
        "kubectl Apply": {"f:metadata": {"f:labels": {"f:region": {}}}, "f:spec": {"f:hubAcceptsClient": {}}}
    }


async def test_a_conflict_is_told_field_by_field_and_forced(kubectl: Applying) -> None:
    file = kubectl.write(labels={"region": "eu"}, hubAcceptsClient=False, leaseDurationSeconds=30)
    assert (await kubectl("apply", "--server-side", "--field-manager=ci", "-f", file)).exit == 0
    file = kubectl.write(labels={"region": "us"}, hubAcceptsClient=False, leaseDurationSeconds=40)

    refused = await kubectl("apply", "--server-side", "-f", file)

    assert refused.exit == 1
    assert refused.lines[:3] == [
        'error: Apply failed with 2 conflicts: conflicts with "ci":',
        "- .metadata.labels.region",
        "- .spec.leaseDurationSeconds",
    ]
    assert (await kubectl.stored())["spec"]["leaseDurationSeconds"] == 30

    assert (await kubectl("apply", "--server-side", "--force-conflicts", "-f", file)).lines == [APPLIED]
    assert (await kubectl.stored())["metadata"]["labels"] == {"region": "us"}
    assert await kubectl.holders() == {
        "ci Apply": {"f:spec": {"f:hubAcceptsClient": {}}},
        "kubectl Apply": {
            "f:metadata": {"f:labels": {"f:region": {}}},
            "f:spec": {"f:hubAcceptsClient": {}, "f:leaseDurationSeconds": {}},
        },
    }


async def test_a_conflict_with_an_updater_names_its_version(kubectl: Applying) -> None:
    file = kubectl.write(hubAcceptsClient=False, leaseDurationSeconds=30)
    assert (await kubectl("create", "-f", file)).exit == 0
    file = kubectl.write(hubAcceptsClient=True)

    refused = await kubectl("apply", "--server-side", "-f", file)

    why = f'error: Apply failed with 1 conflict: conflict with "kubectl-create" using {GROUP}/v1: .spec.hubAcceptsClient'
    assert refused.lines[0] == why


async def test_every_command_writes_in_its_own_name(kubectl: Applying) -> None:
    file = kubectl.write(labels={"region": "eu"}, hubAcceptsClient=False, leaseDurationSeconds=30)
    assert (await kubectl("create", "-f", file)).exit == 0
    assert (await kubectl("label", "managedcluster", "applied", "tier=gold")).exit == 0
    assert (await kubectl("annotate", "managedcluster", "applied", "note=hello")).exit == 0
    patch = '{"spec":{"hubAcceptsClient":true}}'
    assert (await kubectl("patch", "managedcluster", "applied", "--type=merge", "-p", patch)).exit == 0
    assert (await kubectl("edit", "managedcluster", "applied")).exit == 0

    assert await kubectl.holders() == {
        "kubectl-create Update": {"f:metadata": {"f:labels": {".": {}, "f:region": {}}}, "f:spec": {}},
        "kubectl-label Update": {"f:metadata": {"f:labels": {"f:tier": {}}}},
        "kubectl-annotate Update": {"f:metadata": {"f:annotations": {".": {}, "f:note": {}}}},
        "kubectl-patch Update": {"f:spec": {"f:hubAcceptsClient": {}}},
        "kubectl-edit Update": {"f:spec": {"f:leaseDurationSeconds": {}}},
    }

    file = kubectl.write(labels={"region": "de"}, hubAcceptsClient=True, leaseDurationSeconds=31)
    assert (await kubectl("replace", "-f", file)).exit == 0
    holders = await kubectl.holders()
    assert holders["kubectl-replace Update"] == {"f:metadata": {"f:labels": {"f:region": {}}}}
    assert "kubectl-annotate Update" not in holders


async def test_client_side_apply_is_taken_over_by_server_side_apply(kubectl: Applying) -> None:
    file = kubectl.write(labels={"region": "eu", "tier": "gold"}, hubAcceptsClient=False, leaseDurationSeconds=30)
    assert (await kubectl("apply", "-f", file)).lines == [f"managedcluster.{GROUP}/applied created"]
    assert (await kubectl("apply", "-f", file)).lines == [f"managedcluster.{GROUP}/applied unchanged"]
    noted = json.loads((await kubectl("apply", "view-last-applied", "managedcluster", "applied", "-o", "json")).output)
    assert noted["spec"]["leaseDurationSeconds"] == 30

    file = kubectl.write(labels={"region": "us"}, hubAcceptsClient=False, leaseDurationSeconds=45)
    assert (await kubectl("apply", "--server-side", "-f", file)).lines[-1] == APPLIED

    stored = await kubectl.stored()
    assert (stored["metadata"]["labels"], stored["spec"]["leaseDurationSeconds"]) == ({"region": "us"}, 45)
    noted = json.loads((await kubectl("apply", "view-last-applied", "managedcluster", "applied", "-o", "json")).output)
    assert noted["spec"]["leaseDurationSeconds"] == 45
    assert "kubectl-client-side-apply Update" not in await kubectl.holders()


async def test_diff_shows_what_an_apply_would_do_and_does_nothing(kubectl: Applying) -> None:
    file = kubectl.write(labels={"region": "eu"}, hubAcceptsClient=False, leaseDurationSeconds=30)
    assert (await kubectl("apply", "-f", file)).exit == 0
    before = await kubectl.stored()
    assert (await kubectl("diff", "-f", file)).exit == 0

    file = kubectl.write(labels={"region": "us"}, hubAcceptsClient=False, leaseDurationSeconds=30)
    for told in (await kubectl("diff", "-f", file), await kubectl("diff", "--server-side", "--force-conflicts", "-f", file)):
        assert told.exit == 1
        assert "- region: eu" in told.lines
        assert "+ region: us" in told.lines
    assert (await kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", file)).exit == 0

    assert await kubectl.stored() == before


async def test_diff_of_what_is_not_there_yet_shows_all_of_it(kubectl: Applying) -> None:
    told = await kubectl("diff", "--server-side", "-f", kubectl.write(hubAcceptsClient=False))

    assert told.exit == 1
    assert "+ hubAcceptsClient: false" in told.lines
    assert (await kubectl("get", "managedcluster", "applied")).exit == 1


async def test_edit_keeps_the_configuration_that_client_side_apply_noted(kubectl: Applying) -> None:
    file = kubectl.write(hubAcceptsClient=False, leaseDurationSeconds=30)
    assert (await kubectl("create", "--save-config", "-f", file)).exit == 0

    assert (await kubectl("edit", "managedcluster", "applied", "--save-config")).exit == 0

    noted = json.loads((await kubectl("apply", "view-last-applied", "managedcluster", "applied", "-o", "json")).output)
    assert noted["spec"]["leaseDurationSeconds"] == 31


async def test_taints_that_the_server_stamps_make_no_second_write(kubectl: Applying) -> None:
    file = kubectl.write(hubAcceptsClient=False, taints=[{"key": "maintenance", "effect": "NoSelect"}])
    assert (await kubectl("apply", "--server-side", "-f", file)).exit == 0
    before = await kubectl.stored()

    assert (await kubectl("apply", "--server-side", "-f", file)).exit == 0

    assert await kubectl.stored() == before


async def test_conditions_are_applied_one_by_one_through_the_status(kubectl: Applying) -> None:
    assert (await kubectl("create", "-f", kubectl.write(hubAcceptsClient=False))).exit == 0
    for kind in ("One", "Other"):
        condition = {
            "type": kind,
            "status": "True",
            "reason": "Test",
            "message": "",
            "lastTransitionTime": "2026-11-21T00:00:00Z",
        }
        status = {"conditions": [condition], **({"version": {"kubernetes": "v1.31.0"}} if kind == "One" else {})}
        document = {"apiVersion": f"{GROUP}/v1", "kind": "ManagedCluster", "metadata": {"name": "applied"}, "status": status}
        command = ("apply", "--server-side", "--subresource=status", f"--field-manager={kind.lower()}", "-f", "-")
        assert (await kubectl(*command, given=json.dumps(document))).lines == [APPLIED]

    stored = await kubectl.stored()
    assert [condition["type"] for condition in stored["status"]["conditions"]] == ["One", "Other"]
    holders = {entry["manager"]: entry for entry in stored["metadata"]["managedFields"]}
    assert holders["one"]["subresource"] == "status"
    assert list(holders["other"]["fieldsV1"]["f:status"]) == ["f:conditions"]
    assert list(holders["other"]["fieldsV1"]["f:status"]["f:conditions"]) == ['k:{"type":"Other"}']


async def test_a_hollow_cluster_takes_applied_objects(hollow_cluster: HollowCluster, tmp_path: Path) -> None:
    (tmp_path / "hollow.kubeconfig").write_text(yaml.safe_dump(hollow_cluster.kubeconfig()))
    kubectl = Kubectl(tmp_path, "https://unused.invalid")
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}, "data": {"a": "1"}}
    connected = ("--kubeconfig", str(tmp_path / "hollow.kubeconfig"))

    applied = await kubectl(*connected, "apply", "--server-side", "-f", "-", given=json.dumps(config))
    assert applied.lines == ["configmap/c serverside-applied"]
    assert (await kubectl(*connected, "patch", "configmap", "c", "-p", '{"data":{"b":"2"}}')).exit == 0
    applied = await kubectl(*connected, "apply", "--server-side", "-f", "-", given=json.dumps({**config, "data": {"a": "3"}}))
    assert applied.exit == 0

    stored = json.loads((await kubectl(*connected, "get", "cm", "c", "-o", "json", "--show-managed-fields")).output)
    assert stored["data"] == {"a": "3", "b": "2"}
    assert [(entry["manager"], entry["operation"]) for entry in stored["metadata"]["managedFields"]] == [
        ("kubectl", "Apply"),
        ("kubectl-patch", "Update"),
    ]
