"""Who holds which fields when the hub itself writes."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from hub.api.certificatesigningrequests import request as request_rules
from hub.api.managedclusters.cluster import AVAILABLE, StatusReport
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS, Kind
from hub.api.objects import managed_fields as ownership
from hub.api.objects.managed_fields import AGENT_WRITER, HUB_WRITER, tracked
from hub.https_door.groups import groups_of
from hub.registry import kinds
from hub.registry.generic.objects import Unchanged
from hub.registry.kinds import WRITE_PATHS
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.apiserver.kinds.rbac import ROLES_AND_BINDINGS
from machinery.apiserver.resource import Resource
from machinery.identity import AddOnName
from machinery.meta.conditions import Condition
from machinery.meta.managedfields.ownership import MOST_UPDATERS
from machinery.meta.managedfields.structure import FieldForm, Structure, keyed_lists
from machinery.meta.objects import Key
from machinery.product import GROUP_SUFFIX
from tests.checks import check_each, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import EDGE, OPERATOR, Newcomer

NOW = datetime(2026, 11, 21, 7, tzinfo=UTC)
_PARTS = ("lastTransitionTime", "message", "reason", "status", "type")
CONDITION: dict[str, Any] = {".": {}, **{f"f:{name}": {} for name in _PARTS}}


def shares(store: InlineStore, kind: Kind, name: str, namespace: str = "") -> dict[str, Any]:
    stored = present(store.transact(lambda tx: tx.objects.get(kind, Key(namespace, name))))
    fields = stored.document["metadata"].get("managedFields", [])
    return {" ".join((entry["manager"], entry.get("subresource", ""))).strip(): entry["fieldsV1"] for entry in fields}


def condition(kind: str) -> str:
    return f'k:{{"type":"{kind}"}}'


def test_cluster_is_the_agents_and_its_acceptance_and_other_conditions_the_hubs(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.accepted()
    owned = shares(store, MANAGED_CLUSTERS, EDGE)
    assert owned[HUB_WRITER]["f:spec"] == {"f:hubAcceptsClient": {}}
    assert owned[AGENT_WRITER]["f:spec"] == {".": {}, "f:leaseDurationSeconds": {}}
    report = StatusReport(conditions=(AVAILABLE,), kubernetes_version="v1.31.2", node_count=3)
    store.transact(clusters.report_status, EDGE, report, "agent")
    revision = store.state.revision
    store.transact(clusters.report_status, EDGE, report, "agent")
    written = store.transact(lambda tx: clusters.put(tx, dict(clusters.find(tx, EDGE).document), clusters.find(tx, EDGE), "x"))
    assert isinstance(written, Unchanged)
    assert store.state.revision == revision, "the same report again writes nothing"
    store.transact(clusters.set_condition, EDGE, Condition("Deleting", "True", "Test", ""), "hub")
    owned = shares(store, MANAGED_CLUSTERS, EDGE)
    status = owned[f"{AGENT_WRITER} status"]["f:status"]
    assert status["f:conditions"] == {".": {}, condition(AVAILABLE.type): CONDITION}
    assert status["f:version"] == {".": {}, "f:kubernetes": {}}
    assert owned[f"{HUB_WRITER} status"] == {"f:status": {"f:conditions": {condition("Deleting"): CONDITION}}}


def test_an_operators_condition_that_the_agent_reports_too_changes_hands(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.accepted()
    store.transact(clusters.set_condition, EDGE, Condition(AVAILABLE.type, "Unknown", "Test", ""), "hub")

    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(AVAILABLE,), complete=False), "agent")

    told = shares(store, MANAGED_CLUSTERS, EDGE)
    entry = condition(AVAILABLE.type)
    changed = {"f:status", "f:reason", "f:message"}
    assert changed.isdisjoint(told[f"{HUB_WRITER} status"]["f:status"]["f:conditions"][entry])
    assert told[f"{AGENT_WRITER} status"]["f:status"]["f:conditions"][entry].keys() >= changed


def test_who_holds_a_field_in_the_older_version_loses_it_under_its_older_name(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.join(newcomer.bootstrap())
    older = f"addon.{GROUP_SUFFIX}/v1alpha1"
    fields: dict[str, Any] = {"f:status": {"f:registrations": {}, "f:kubeClientDriver": {}}}
    entry = {"apiVersion": older, "fieldsType": "FieldsV1", "manager": "old", "operation": "Update", "fieldsV1": fields}
    kube = {"type": "kubeClient", "kubeClient": {"driver": "csr"}}
    document = {
        "metadata": {"name": "metrics", "namespace": "edge", "managedFields": [entry]},
        "spec": {},
        "status": {"registrations": [kube]},
    }
    store.transact(lambda tx: addons.put(tx, document, None, OPERATOR))
    stored = store.transact(lambda tx: addons.find(tx, EDGE, AddOnName("metrics")))
    changed = {**stored.document, "status": {"registrations": [{**kube, "kubeClient": {"driver": "token"}}]}}

    store.transact(lambda tx: addons.put(tx, changed, addons.find(tx, EDGE, AddOnName("metrics")), "hub", writer=HUB_WRITER))

    told = shares(store, ADDONS, "metrics", "edge")
    assert told == {"old": {"f:status": {"f:registrations": {}}}, f"{HUB_WRITER} status": {"f:status": {"f:registrations": {}}}}


def test_requests_are_the_agents_and_their_decision_and_certificate_the_hubs(newcomer: Newcomer, store: InlineStore) -> None:
    name = newcomer.issued(newcomer.accepted())
    told = shares(store, REQUESTS, name)
    assert sorted(told) == [AGENT_WRITER, HUB_WRITER, f"{HUB_WRITER} status"]
    assert "f:spec" not in told[AGENT_WRITER]
    assert request_rules.RECOVERY_ANNOTATION in next(iter(told[HUB_WRITER]["f:metadata"]["f:annotations"].keys() - {"."}))
    assert told[f"{HUB_WRITER} status"]["f:status"].keys() == {"f:conditions", "f:certificate"}


def test_what_came_without_holders_stays_without(store: InlineStore) -> None:
    entered = {"metadata": {"name": "edge"}, "spec": {"hubAcceptsClient": True}}
    store.transact(clusters.put, entered, None, OPERATOR)

    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(AVAILABLE,)), "agent")

    assert shares(store, MANAGED_CLUSTERS, "edge") == {}


def test_writers_beyond_the_tenth_become_one() -> None:
    document: dict[str, Any] = {"apiVersion": "v", "metadata": {"labels": {}}}
    before = None
    for number in range(MOST_UPDATERS + 3):
        labels = {**document["metadata"]["labels"], f"l{number}": "x"}
        new = {**document, "metadata": {**document["metadata"], "labels": labels}}
        document, before = tracked(MANAGED_CLUSTERS, new, before, f"writer{number:02}", NOW), document
        before = document

    managers = [entry["manager"] for entry in document["metadata"]["managedFields"]]
    assert len(managers) == MOST_UPDATERS
    assert "ancient-changes" in managers


def served() -> dict[str, Resource]:
    """By the name of the kind, the resource that the door serves."""
    nothing: Any = None
    groups = groups_of(nothing, GROUP_SUFFIX, nothing, nothing, nothing)
    found = {str(resource.key): resource for group in groups for resource in group.resources}
    return {**found, **{str(resource.key): resource for resource in ROLES_AND_BINDINGS}}


def atomic_maps(structure: Structure, path: str = "") -> Iterator[str]:
    """The maps below declared fields that have one holder each."""
    for name, part in structure.fields.items():
        here = f"{path}{name}"
        if part.form is FieldForm.LEAF and part.json_type == "object":
            yield here
        elif part.form is FieldForm.MAP and name != "metadata":
            yield from atomic_maps(part, f"{here}.")


def test_services_and_api_server_divide_every_kind_alike() -> None:
    """The services know lists by a table, the API server by its schemas."""
    resources = served()

    def check(kind: Kind) -> None:
        resource = resources[str(WRITE_PATHS[kind].resource(GROUP_SUFFIX))]
        structure = resource.structures[resource.api_version()]
        declared = {path: keys for path, keys in keyed_lists(structure) if not path.startswith("metadata")}
        assert dict(ownership.LIST_MAPS.get(kind, {})) == declared
        assert set(ownership.WHOLE.get(kind, ())) == set(atomic_maps(structure))
        assert ownership.is_kubernetes_own(kind) is not resource.custom
        assert ownership.FIXED.get(kind, ()) == resource.fixed

    check_each(check, [(kind,) for kind in sorted(kinds.WRITE_PATHS)])
