"""Add-ons: their labels, health and token infrastructure, and the two versions of their API."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import yaml

from hub.api.managedclusteraddons import addon as rules, versions
from hub.api.managedclusteraddons.health import FEATURE_PREFIX, NOTE
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, Kind
from hub.registry import namespaces
from hub.registry.managedclusteraddons import resource, service as addons
from hub.registry.managedclusters import service as clusters
from machinery.apiserver.write.schema import pruned, violations
from machinery.identity import AddOnName, ClusterName
from machinery.meta import conditions
from machinery.meta.conditions import AVAILABLE, Condition
from tests.checks import CASE_FILES, check_results, present
from tests.fakes.fleetwork import Fleetwork, addon, cluster, find, put, remove
from tests.unit.hub.controllers.conftest import Hub

TABLES = yaml.safe_load((CASE_FILES / "addon-versions.yaml").read_text())

C1 = ClusterName("c1")
LEASE_STOPPED = "ManagedClusterLeaseUpdateStopped"
STATES = {"well": "available", "ill": "unhealthy", "lost": "unreachable", "new": "unreachable"}
BY_TOKEN = [{"type": "kubeClient", "kubeClient": {"driver": "token"}}]
BY_CERTIFICATE = [{"type": "kubeClient", "kubeClient": {"driver": "csr"}}]
NAMES: dict[Kind, str] = {SERVICE_ACCOUNTS: "x-agent", ROLES: "x-token-role", ROLE_BINDINGS: "x-token-role"}
Document = dict[str, Any]
CONDITION = {**Condition("Available", "True", "Fine", "").to_document(), "lastTransitionTime": "2026-01-01T00:00:00Z"}
HASH = {"name": "settings", "namespace": "default", "specHash": "abc"}


def says(hub: Hub, verdict: Condition = cluster_rules.AVAILABLE) -> None:
    hub.store.transact(clusters.set_condition, C1, verdict, "agent")


def features(hub: Hub) -> dict[str, str]:
    labels = doc.labels(hub.cluster("c1"))
    return {name.removeprefix(FEATURE_PREFIX): value for name, value in labels.items() if name.startswith(FEATURE_PREFIX)}


def health(hub: Hub, name: str) -> tuple[str, str] | None:
    found = conditions.find(doc.conditions(present(hub.store.transact(find, ADDONS, name, "c1")).document), "Available")
    return (found.status, found.reason) if found else None


def report(hub: Hub, name: str, status: str) -> None:
    reported = Condition("Available", status, "ManagedClusterAddOnLeaseUpdated", "reported")
    hub.store.transact(addons.report, C1, AddOnName(name), (reported,), "agent")


@pytest.fixture
async def work(hub: Hub) -> Fleetwork:
    """A cluster that is well, with add-ons in each state."""
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c1", region="eu"))
    says(hub)
    for name, available in (("well", "True"), ("ill", "False"), ("lost", "Unknown"), ("new", None)):
        hub.store.transact(put, ADDONS, addon(name, "c1", available))
    return await Fleetwork(hub.store).start()


async def test_each_add_on_shows_in_a_label_that_follows_it_and_cannot_be_forged(hub: Hub, work: Fleetwork) -> None:
    assert (features(hub), doc.labels(hub.cluster("c1"))["region"]) == (STATES, "eu")
    document = {**hub.cluster("c1")}
    forged = {**doc.labels(document), f"{FEATURE_PREFIX}well": "unhealthy", f"{FEATURE_PREFIX}never-there": "available"}
    hub.store.transact(put, MANAGED_CLUSTERS, doc.with_metadata(document, labels=forged))
    await work.settle()
    assert features(hub) == STATES
    for name in ("a" * 60, "short"):  # the first of them is no label, and stops no other
        hub.store.transact(put, ADDONS, addon(name, "c1", "True"))
    report(hub, "new", "True")
    hub.store.transact(remove, ADDONS, "ill", "c1")
    hub.store.transact(put, ADDONS, doc.with_metadata(addon("well", "c1", "True"), finalizers=["example.com/hold"]))
    hub.store.transact(remove, ADDONS, "well", "c1")
    await work.settle()
    assert features(hub) == {"lost": "unreachable", "new": "available", "short": "available"}


async def test_a_cluster_that_was_never_heard_of_is_not_labelled(hub: Hub) -> None:
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c1"))
    hub.store.transact(put, ADDONS, addon("well", "c1", "True"))
    work = await Fleetwork(hub.store).start()
    assert features(hub) == {}
    says(hub)
    await work.settle()
    assert features(hub) == {"well": "available"}


async def test_clusters_that_are_being_deleted_missing_or_never_accepted_are_left_alone(hub: Hub) -> None:
    hub.store.transact(put, MANAGED_CLUSTERS, doc.with_metadata(cluster("c1"), finalizers=["example.com/hold"]))
    says(hub)
    hub.store.transact(remove, MANAGED_CLUSTERS, "c1")
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c2", accepted=False))
    for place in ("c1", "c2", "nowhere"):
        hub.store.transact(put, ADDONS, addon("well", place, "True"))
    before = hub.revision
    await Fleetwork(hub.store).start()
    assert hub.revision == before


async def test_add_ons_of_a_silent_cluster_are_unknown_until_it_is_heard_again(hub: Hub, work: Fleetwork) -> None:
    """An agent that comes back reports its add-ons before the hub has judged its first beat."""
    before = {name: health(hub, name) for name in STATES}
    says(hub, cluster_rules.SILENT)
    await work.settle()
    hub.store.transact(put, ADDONS, addon("late", "c1"))
    report(hub, "ill", "True")
    await work.settle()
    assert {health(hub, name) for name in (*STATES, "late")} == {("Unknown", LEASE_STOPPED)}
    assert set(features(hub).values()) == {"unreachable"}
    revision = hub.revision
    await Fleetwork(hub.store).start()
    await work.start()
    assert hub.revision == revision, "another look writes nothing"
    says(hub, Condition(AVAILABLE, "Unknown", "ManagedClusterMoved", "The agent is with another hub."))
    await work.settle()
    assert health(hub, "well") == ("Unknown", "ManagedClusterMoved")
    says(hub)
    await work.settle()
    assert {name: health(hub, name) for name in STATES} == {**before, "ill": ("True", "ManagedClusterAddOnLeaseUpdated")}
    assert NOTE not in doc.annotations(present(hub.store.transact(find, ADDONS, "well", "c1")).document)


async def test_report_at_the_end_of_a_silence_stands_and_a_deletion_changes_nothing(hub: Hub, work: Fleetwork) -> None:
    says(hub, cluster_rules.SILENT)
    await work.settle()
    says(hub)
    report(hub, "ill", "True")
    await work.settle()
    assert health(hub, "ill") == ("True", "ManagedClusterAddOnLeaseUpdated")
    hub.store.transact(remove, MANAGED_CLUSTERS, "c1")
    says(hub, cluster_rules.SILENT)
    await work.settle()
    assert health(hub, "well") == ("Unknown", LEASE_STOPPED), "an operator who waits for add-ons to go sees that"


async def test_a_note_that_somebody_spoilt_holds_nothing_up(hub: Hub, work: Fleetwork) -> None:
    for spoilt in ("", "{", '{"reason": 7}', "null"):
        hub.store.transact(put, ADDONS, addon("well", "c1", "True"))
        says(hub, cluster_rules.SILENT)
        await work.settle()
        stored = present(hub.store.transact(find, ADDONS, "well", "c1"))
        document: dict[str, Any] = doc.with_annotations(stored.document, {NOTE: spoilt})
        hub.store.transact(put, ADDONS, document)
        says(hub, cluster_rules.UNAVAILABLE)
        await work.settle()
        assert health(hub, "well") is None, "what stood before is not known"
        assert health(hub, "ill") == ("False", "ManagedClusterAddOnLeaseUpdateStopped")


def made(hub: Hub, kind: Kind) -> dict[str, Any]:
    return dict(present(hub.store.transact(find, kind, NAMES[kind], "c1")).document)


def parts(hub: Hub) -> list[Kind]:
    return [kind for kind, name in NAMES.items() if hub.store.transact(find, kind, name, "c1") is not None]


def ready(hub: Hub) -> Condition | None:
    stored = present(hub.store.transact(find, ADDONS, "x", "c1"))
    return conditions.find(doc.conditions(stored.document), rules.INFRASTRUCTURE_READY)


def registers(hub: Hub, registrations: list[dict[str, Any]]) -> None:
    stored = hub.store.transact(find, ADDONS, "x", "c1")
    before = stored.document if stored else addon("x", "c1")
    hub.store.transact(put, ADDONS, doc.with_status(before, registrations=registrations))


@pytest.fixture
async def by_token(hub: Hub) -> Fleetwork:
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c1"))
    registers(hub, BY_TOKEN)
    return await Fleetwork(hub.store).start()


def infrastructure(hub: Hub) -> tuple[str, str, str]:
    found = present(ready(hub))
    return found.status, found.reason, found.message


async def test_an_add_on_by_token_has_an_account_and_its_agent_the_right_to_it(hub: Hub, by_token: Fleetwork) -> None:
    assert parts(hub) == list(NAMES)
    assert doc.labels(made(hub, SERVICE_ACCOUNTS)) == {
        "addon.open-cluster-management.io/token-infrastructure": "true",
        "addon.open-cluster-management.io/name": "x",
        "open-cluster-management.io/cluster-name": "c1",
    }
    (rule,) = made(hub, ROLES)["rules"]
    token = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": ["x-agent"], "verbs": ["create"]}
    assert rule == token
    binding = made(hub, ROLE_BINDINGS)
    assert [subject["name"] for subject in binding["subjects"]] == ["system:open-cluster-management:c1"]
    assert binding["roleRef"]["name"] == "x-token-role"
    assert [event.reason for event in by_token.recorded] == ["TokenInfrastructureReady"]
    uid = made(hub, SERVICE_ACCOUNTS)["metadata"]["uid"]
    assert infrastructure(hub) == ("True", "TokenInfrastructureReady", f"ServiceAccount c1/x-agent (UID: {uid}) is ready")
    before = hub.revision
    await Fleetwork(hub.store).start()
    await by_token.start()
    assert hub.revision == before, "another look writes nothing"
    hub.store.transact(remove, SERVICE_ACCOUNTS, "x-agent", "c1")
    hub.store.transact(put, ROLES, {**made(hub, ROLES), "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]})
    hub.store.transact(put, ROLE_BINDINGS, {**made(hub, ROLE_BINDINGS), "subjects": []})
    await by_token.settle()
    assert made(hub, ROLES)["rules"] == [token], "what is deleted or changed comes back"
    assert len(made(hub, ROLE_BINDINGS)["subjects"]) == 1
    new = made(hub, SERVICE_ACCOUNTS)["metadata"]["uid"]
    assert new in infrastructure(hub)[2], "agents ask for a new token when the account is another"


async def test_an_add_on_by_certificate_has_nothing(hub: Hub) -> None:
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c1"))
    registers(hub, BY_CERTIFICATE)
    before, work = hub.revision, await Fleetwork(hub.store).start()
    assert (parts(hub), ready(hub), hub.revision) == ([], None, before)
    registers(hub, BY_TOKEN)
    await work.settle()
    assert parts(hub) == list(NAMES)
    registers(hub, BY_CERTIFICATE)
    await work.settle()
    assert (parts(hub), ready(hub)) == ([], None), "another driver takes all of it away"
    registers(hub, BY_TOKEN)
    await work.settle()
    hub.store.transact(put, SERVICE_ACCOUNTS, doc.with_metadata(made(hub, SERVICE_ACCOUNTS), finalizers=["example.com/hold"]))
    registers(hub, BY_CERTIFICATE)
    await work.settle()
    await work.start()
    assert parts(hub) == [SERVICE_ACCOUNTS], "others finish with it first"


async def test_it_goes_with_the_add_on_also_while_that_waits_for_its_end_or_nobody_looks(hub: Hub, by_token: Fleetwork) -> None:
    for notice in (by_token.settle, by_token.start):
        hub.store.transact(remove, ADDONS, "x", "c1")
        await notice()
        assert parts(hub) == []
        registers(hub, BY_TOKEN)
        await by_token.settle()
        assert parts(hub) == list(NAMES)
    stored = present(hub.store.transact(find, ADDONS, "x", "c1"))
    hub.store.transact(put, ADDONS, doc.with_metadata(stored.document, finalizers=["example.com/hold"]))
    hub.store.transact(remove, ADDONS, "x", "c1")
    await by_token.settle()
    assert parts(hub) == []


async def test_an_account_of_somebody_else_is_neither_used_nor_taken_away(hub: Hub) -> None:
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c1"))
    hub.store.transact(put, SERVICE_ACCOUNTS, {"metadata": {"name": "x-agent", "namespace": "c1"}})
    registers(hub, BY_TOKEN)
    work = await Fleetwork(hub.store).start()
    assert infrastructure(hub)[:2] == ("False", "TokenInfrastructureApplyFailed")
    assert "serviceaccounts c1/x-agent exists" in infrastructure(hub)[2]
    assert (parts(hub), [event.type for event in work.recorded]) == ([SERVICE_ACCOUNTS], ["Warning"])
    hub.store.transact(remove, ADDONS, "x", "c1")
    await work.settle()
    assert parts(hub) == [SERVICE_ACCOUNTS]


async def test_in_a_namespace_that_ends_nothing_is_made(hub: Hub, by_token: Fleetwork) -> None:
    hub.store.transact(lambda tx: namespaces.remove(tx, namespaces.get(tx, "c1"), "admin"))  # type: ignore[arg-type]
    hub.store.transact(remove, SERVICE_ACCOUNTS, "x-agent", "c1")
    await by_token.settle()
    assert SERVICE_ACCOUNTS not in parts(hub)
    assert infrastructure(hub)[0] == "False"


def maybe(chance: random.Random, **choices: Sequence[Any]) -> Document:
    """Each field with one of its values, or without."""
    return {name: chance.choice(values) for name, values in choices.items() if chance.random() < 0.6}


def some(chance: random.Random, make: Callable[[], Document]) -> list[Document]:
    return [make() for _ in range(chance.randrange(3))]


def metadata(chance: random.Random) -> Document:
    notes = maybe(chance, note=["x"], **{versions.INSTALL_NAMESPACE: ["tools", "agents"]})
    return {"name": "metrics", "namespace": "east", **({"annotations": notes} if notes else {})}


def subject(chance: random.Random) -> Document:
    return maybe(chance, user=["agent"], groups=[["a", "b"], []], organizationUnits=[["ou"]])


def stored_registration(chance: random.Random, driver: str | None) -> Document:
    reported = {"subject": found} if (found := subject(chance)) else {}
    if chance.random() < 0.5:
        return {"type": "customSigner", "customSigner": {"signerName": "example.com/signer", **reported}}
    kube = {**reported, **({"driver": driver} if driver else {})}
    return {"type": "kubeClient", **({"kubeClient": kube} if kube else {})}


def reference(chance: random.Random) -> Document:
    hashes = maybe(chance, desiredConfig=[HASH], lastAppliedConfig=[HASH], lastObservedGeneration=[0, 7], group=["", "g"])
    return {"resource": "configs", **hashes}


def stored_add_on(chance: random.Random) -> Document:
    driver = chance.choice(["csr", "token", None])
    status = {
        **maybe(chance, namespace=["agents"], conditions=[[CONDITION], []], healthCheck=[{"mode": "Lease"}]),
        **maybe(chance, registrations=[some(chance, lambda: stored_registration(chance, driver))]),
        **maybe(chance, configReferences=[some(chance, lambda: reference(chance))]),
        **maybe(chance, addOnConfiguration=[{"crdName": "c"}], supportedConfigs=[[{"group": "", "resource": "r"}]]),
    }
    if not any(each["type"] == "kubeClient" for each in status.get("registrations", [])):
        status |= maybe(chance, kubeClientDriver=["csr"])
    spec = maybe(chance, configs=[[{"group": "g", "resource": "r", "name": "n"}]])
    return {"kind": "ManagedClusterAddOn", "metadata": metadata(chance), "spec": spec, **maybe(chance, status=[status])}


def stored_definition(chance: random.Random) -> Document:
    names = [chance.choice(["n", versions.NO_DEFAULT]) for _ in range(chance.randrange(3))]
    configs = [{"group": "g", "resource": f"r{index}", "name": name} for index, name in enumerate(names)]
    spec = {
        **maybe(chance, defaultConfigs=[configs], addOnMeta=[{"displayName": "Metrics"}]),
        **maybe(chance, addOnConfiguration=[{"crdName": "c"}], installStrategy=[{"type": "Manual"}]),
    }
    status = maybe(chance, defaultConfigReferences=[[{"resource": "r", "desiredConfig": HASH}]], installProgressions=[[]])
    return {"kind": "ClusterManagementAddOn", "metadata": {"name": "metrics"}, "spec": spec, **maybe(chance, status=[status])}


OF_ADDONS, OF_DEFINITIONS = (
    (each.resource.schema, each.resource.versions[0].schema)
    for each in (resource.MANAGED_CLUSTER_ADD_ON, resource.CLUSTER_MANAGEMENT_ADD_ON)
)
CASES = [
    (stored_add_on, versions.add_on_shown, versions.add_on_stored, OF_ADDONS),
    (stored_definition, versions.definition_shown, versions.definition_stored, OF_DEFINITIONS),
]


@pytest.mark.parametrize(("make", "shown", "stored", "schemas"), CASES, ids=["add-on", "definition"])
def test_nothing_is_lost_there_and_back(make: Any, shown: Any, stored: Any, schemas: Any) -> None:
    for seed in range(500):
        document = make(random.Random(seed))
        old = shown(document)
        assert stored(old) == document, seed
        assert shown(stored(old)) == old, seed
        for schema, each in zip(schemas, (document, old), strict=True):
            assert (violations(schema, each), pruned(schema, each)[1]) == ([], []), seed


def test_older_versions_read_as_ocm_converts_them() -> None:
    old = TABLES["older"]
    stored = versions.add_on_stored(old)
    assert (stored["metadata"]["annotations"], stored["spec"]) == ({versions.INSTALL_NAMESPACE: "tools"}, {})
    assert (stored["status"], versions.add_on_shown(stored)) == (TABLES["stored"], old)

    def shown(spec: Document, annotations: Document) -> str:
        document = {"metadata": {"name": "metrics", "annotations": annotations}, "spec": spec}
        return str(versions.add_on_shown(versions.add_on_stored(document))["spec"]["installNamespace"])

    annotated = {versions.INSTALL_NAMESPACE: "agents"}
    rows: tuple[tuple[Document, Document, str], ...] = (
        *(({}, {}, "open-cluster-management-agent-addon"), ({"installNamespace": "tools"}, {}, "tools")),
        ({"installNamespace": "tools"}, annotated, "tools"),
        ({"installNamespace": versions.DEFAULT_NAMESPACE}, annotated, versions.DEFAULT_NAMESPACE),
        ({}, annotated, "agents"),
    )
    check_results(shown, rows)
    old = {"metadata": {"name": "m"}, "spec": {"supportedConfigs": [{"group": "g", "resource": "r"}]}}
    stored = versions.definition_stored(old)
    assert stored["spec"] == {"defaultConfigs": [{"group": "g", "resource": "r", "name": "__reserved_no_default__"}]}
    assert versions.definition_shown(stored) == old
