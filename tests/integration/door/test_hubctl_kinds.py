"""hubctl on any kind of object: found by discovery, shown in every form, labelled, tainted, applied, waited for, deleted."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from hub.cli.failures import MISUSED, NOT_FOUND, TIMED_OUT
from hub.cli.resources import CLUSTERS
from tests.fakes.hubctl import Said, hubctl_at
from tests.integration.door.conftest import HubUnderTest

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


async def test_any_kind_is_found_by_any_of_its_words(fleet: HubUnderTest) -> None:
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


async def test_names_kinds_and_objects_are_given_in_kubectls_ways(fleet: HubUnderTest) -> None:
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


async def test_what_is_missing_has_an_exit_code_of_its_own(fleet: HubUnderTest) -> None:
    some = await ask(fleet, "get", "clusters", "edge1", "nope", "-o", "name")
    assert (some.code, "edge1" in some.out, '"nope" not found' in some.err) == (NOT_FOUND, True, True)
    assert (await ask(fleet, "get", "clusters", "nope", "--ignore-not-found")) == Said(0, "", "")
    assert (await ask(fleet, "label", "clusters", "-l", "no=body", "a=b")).code == NOT_FOUND


async def test_fields_choose_and_limits_end(fleet: HubUnderTest) -> None:
    assert "edge2" in await done(fleet, "get", "clusters", "--field-selector", "metadata.name=edge2", "-o", "name")
    assert len((await done(fleet, "get", "clusters", "--limit", "1", "-o", "name")).splitlines()) == 1
    page = json.loads(await done(fleet, "get", "clusters", "--limit", "1", "-o", "json"))
    assert (len(page["items"]), "continue" in page["metadata"]) == (1, False)


async def test_labels_and_annotations_change_as_with_kubectl(fleet: HubUnderTest) -> None:
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


async def test_clusters_are_tainted_and_freed(fleet: HubUnderTest) -> None:
    both = await done(fleet, "taint", "clusters", "edge1", "edge2", "gpu=none:NoSelect")
    assert both == 'cluster "edge1" tainted\ncluster "edge2" tainted\n'
    path = "jsonpath={.spec.taints[?(@.key=='gpu')].value}"
    assert await done(fleet, "get", "cluster", "edge1", "-o", path) == "none"
    assert "tainted so already" in await done(fleet, "taint", "edge1", "gpu=none:NoSelect")
    assert await done(fleet, "taint", "clusters", "--all", "gpu-") == 'cluster "edge1" untainted\ncluster "edge2" untainted\n'
    assert await done(fleet, "get", "cluster", "edge1", "-o", path) == ""
    assert (await ask(fleet, "taint", "clusters", "edge1", "gpu-")).code == NOT_FOUND


async def test_manifests_are_applied_deleted_and_told_what_became_of_them(fleet: HubUnderTest, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ("{", MISUSED, "is not YAML"),
        ("[]", MISUSED, "is no mapping"),
        ("", MISUSED, "no object"),
        ("kind: X", MISUSED, "lacks apiVersion and metadata.name"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}", MISUSED, "-n CLUSTER"),
        ("{apiVersion: v1, kind: ConfigMp, metadata: {name: x}}", NOT_FOUND, 'did you mean "ConfigMap"'),
        ("{apiVersion: v1, kind: Namespace, metadata: {name: x}, spek: {}}", 1, "spek"),
    ],
)
async def test_what_cannot_be_applied_says_why(hub: HubUnderTest, given: str, code: int, words: str) -> None:
    refused = await ask(hub, "apply", "-f", "-", given=given)
    assert (refused.code, words in refused.err) == (code, True), refused.err


async def test_a_wait_ends_when_it_is_so_and_when_the_time_is_over(fleet: HubUnderTest) -> None:
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


async def test_kinds_that_cannot_be_watched_are_looked_at_again(fleet: HubUnderTest) -> None:
    assert "has {.status.clusters}=2" in await done(
        fleet, "wait", "fleet", "fleet", "--for=jsonpath={.status.clusters}=2", "--timeout=5s"
    )
