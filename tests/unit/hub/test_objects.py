"""Documents, the write path of kinds without rules of their own, the admission of clusters, and who holds which fields."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from hub.api import certificatesigningrequests as request_rules, managed_fields as ownership
from hub.api.approvalrules import CLUSTER_FIELDS, RequesterKind, RuleAction
from hub.api.certificateauthorities.authority import Phase
from hub.api.liveness import DEFAULT_LEASE_DURATION
from hub.api.managed_fields import AGENT_WRITER, HUB_WRITER, tracked
from hub.api.managedclusters import cluster as rules
from hub.api.managedclusters.admission import admitted
from hub.api.managedclusters.availability import Departure
from hub.api.managedclusters.cluster import AVAILABLE, JoinRequest, StatusReport
from hub.api.managedclustersets import BY_LABELS, EXCLUSIVE
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, CONFIG_MAPS, MANAGED_CLUSTERS, REQUESTS, Kind
from hub.api.revocations import Reason
from hub.https_door.groups import groups_of
from hub.registry import kinds, owners
from hub.registry.generic import objects, structure_of
from hub.registry.generic.objects import Unchanged
from hub.registry.kinds import DEFINITIONS, WRITE_PATHS
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.apiserver.http.limits import OBJECT_CEILING, OBJECT_LIMIT
from machinery.apiserver.kinds.rbac import ROLES_AND_BINDINGS
from machinery.apiserver.resource import Resource
from machinery.errors import InvalidError, NotFoundError, TooLargeError
from machinery.identity import AddOnName, HubId
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.managedfields.ownership import MOST_UPDATERS
from machinery.meta.objects import Key, StoredObject
from machinery.product import GROUP_SUFFIX
from tests.checks import check_each, check_refusal, check_refusals, check_results, present, refusal
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import EDGE, OPERATOR, Newcomer

KEY = Key("east", "settings")
AGENT = f"system:open-cluster-management:{EDGE}:agent"
ME, OTHER = HubId("hub-a"), HubId("hub-b")
WORKS = Condition("Works", conditions.TRUE, "Seen", "")
_PARTS = ("lastTransitionTime", "message", "reason", "status", "type")
CONDITION: dict[str, Any] = {".": {}, **{f"f:{name}": {} for name in _PARTS}}
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DOCUMENT: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Thing",
    "metadata": {"name": "a", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 3},
    "spec": {"size": 1},
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "size": 1},
}
STAMP, EARLIER = "2026-01-02T03:04:05Z", "2025-12-31T00:00:00Z"
TYPE = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
UNLIKE_ANY_RULE: dict[str, Any] = {
    "hubAcceptsClient": True,
    "leaseDurationSeconds": -1,
    "managedClusterClientConfigs": [{"url": "http://b"}],
    "taints": [{"key": "a", "effect": "NoSelect"}, {"key": "a", "effect": "NoSelect", "timeAdded": "2020-01-01T00:00:00Z"}],
}


def config_map(**changed: Any) -> dict[str, Any]:
    metadata = {"name": KEY.name, "namespace": KEY.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}, **changed}


def put(store: InlineStore, new: dict[str, Any], *, generations: bool = False) -> StoredObject:
    return store.transact(objects.put, CONFIG_MAPS, new, found(store), "admin", generations=generations).stored


def remove(store: InlineStore) -> None:
    store.transact(lambda tx: objects.remove(tx, CONFIG_MAPS, objects.find(tx, CONFIG_MAPS, KEY), "admin"))


def found(store: InlineStore) -> StoredObject | None:
    return store.transact(lambda tx: tx.objects.get(CONFIG_MAPS, KEY))


def with_finalizers(stored: StoredObject, *names: str) -> dict[str, Any]:
    return doc.with_metadata(stored.document, finalizers=list(names) or None)


def test_generations_are_counted_for_kinds_that_have_them(store: InlineStore) -> None:
    first = put(store, config_map(), generations=True)
    labelled = put(store, doc.with_metadata(first.document, labels={"a": "b"}), generations=True)
    changed = put(store, {**labelled.document, "data": {}}, generations=True)
    assert [each.document["metadata"]["generation"] for each in (first, labelled, changed)] == [1, 1, 2]


def test_finalizer_holds_an_object_and_one_without_goes_at_once(store: InlineStore) -> None:
    put(store, with_finalizers(put(store, config_map()), "example.com/wait"))
    remove(store)
    held = present(found(store))
    assert doc.is_deleting(held.document)
    put(store, with_finalizers(held))
    assert found(store) is None
    put(store, config_map())
    remove(store)
    with pytest.raises(NotFoundError, match='configmaps "settings" not found'):
        store.transact(lambda tx: objects.find(tx, CONFIG_MAPS, KEY))


def stamped(new: dict[str, Any], old: dict[str, Any] | None, *, generations: bool = True) -> dict[str, Any]:
    return dict(doc.stamped(new, old, uid="fresh", now=NOW, generations=generations)["metadata"])


def test_uid_creation_and_generation_are_the_stores_to_choose() -> None:
    created = {"uid": "fresh", "creationTimestamp": "2026-01-02T03:04:05Z"}
    assert stamped(DOCUMENT, None) == {"name": "a", "namespace": "n", **created, "generation": 1}
    assert "generation" not in stamped(DOCUMENT, None, generations=False)
    claimed = doc.with_metadata(DOCUMENT, uid="other", creationTimestamp="2020-01-01T00:00:00Z", generation=99)
    assert stamped(claimed, DOCUMENT) == DOCUMENT["metadata"]
    rows = (
        *((doc.with_spec(DOCUMENT, size=2), 4), (doc.with_status(DOCUMENT, size=2), 3)),
        *((doc.with_annotations(DOCUMENT, {"note": "x"}), 3), (doc.deleting(DOCUMENT, NOW), 4), (DOCUMENT, 3)),
    )
    check_results(lambda changed: stamped(changed, DOCUMENT)["generation"], rows)
    odd: dict[str, Any] = {"metadata": {"labels": None, "annotations": ["x"], "finalizers": "x"}, "status": None}
    assert (doc.labels(odd), doc.annotations(odd), doc.finalizers(odd), doc.conditions(odd)) == ({}, {}, (), [])
    assert (doc.name({}), doc.is_deleting({}), str(doc.key(DOCUMENT))) == ("", False, "n/a")


@pytest.fixture
def accepted(newcomer: Newcomer, store: InlineStore) -> InlineStore:
    newcomer.accepted()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    store.transact(clusters.set_condition, EDGE, rules.AVAILABLE, "hub")
    return store


@pytest.fixture(params=[objects.AGENT_LIMIT + 1, OBJECT_LIMIT + 1])
def large(accepted: InlineStore, request: pytest.FixtureRequest) -> InlineStore:
    fill(accepted, request.param)
    return accepted


def report(store: InlineStore, length: int, *, status: Condition = WORKS, actor: str = AGENT) -> None:
    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(status,), kubernetes_version="x" * length), actor)


def size(store: InlineStore) -> int:
    return len(store.transact(clusters.find, EDGE).encoded)


def fill(store: InlineStore, wanted: int) -> None:
    """As an earlier release let an agent do."""
    for _ in range(2):
        report(store, length(store) + wanted - size(store), actor="an earlier release")
    assert size(store) == wanted


def length(store: InlineStore) -> int:
    return len(doc.mapping(store.transact(clusters.find, EDGE).document, "status", "version").get("kubernetes", ""))


def test_large_object_grows_by_conditions_and_a_join_and_not_by_more(large: InlineStore) -> None:
    before = size(large)
    report(large, length(large), status=Condition("Works", conditions.FALSE, "NotSeen", "x" * 100))
    assert size(large) > before
    check_refusal(TooLargeError, report, large, length(large) + 2 * objects.GROWTH_ABOVE_LIMIT, match="the limit for agents is")
    before = size(large)
    annotations = {rules.AGENT_ANNOTATIONS + "node": "x" * 100}
    large.transact(clusters.ensure, JoinRequest(name=EDGE, cluster_uid="uid-1", annotations=annotations), AGENT)
    assert size(large) > before


@pytest.mark.parametrize(("use_case", "given"), [(owners.stand_by, ("uid-1", ME)), (owners.record_handover, (6,))])
def test_where_it_has_gone_is_reported_however_large_it_is(
    accepted: InlineStore, use_case: Callable[..., Any], given: tuple[Any, ...]
) -> None:
    fill(accepted, OBJECT_CEILING)
    accepted.transact(use_case, Departure(EDGE, OTHER, 6), *given, AGENT)
    found = present(rules.availability(accepted.transact(clusters.find, EDGE).document))
    assert (found.status, OTHER in found.message) == (conditions.UNKNOWN, True)


def test_byte_by_byte_it_does_not_fill_what_is_left_for_operators(accepted: InlineStore) -> None:
    assert objects.AGENT_LIMIT < OBJECT_LIMIT < objects.HARD_LIMIT < OBJECT_CEILING
    assert OBJECT_CEILING - objects.HARD_LIMIT == 128 * 1024
    fill(accepted, objects.HARD_LIMIT)
    report(accepted, length(accepted))
    check_refusal(TooLargeError, report, accepted, length(accepted) + 100, match="the limit for agents is")
    report(accepted, length(accepted) - 1)


def cluster(name: str = "edge", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


def taint(value: str = "", **more: str) -> dict[str, str]:
    return {"key": "example.com/k", "value": value, "effect": "NoSelect", **more}


def test_defaults_are_filled_in_and_a_broken_rule_names_its_field() -> None:
    for name in ("edge", "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "a" * 63):
        document = admitted({"metadata": {"name": name}}, None, NOW)
        assert document == {**TYPE, "metadata": {"name": name}, "spec": {"hubAcceptsClient": False, "leaseDurationSeconds": 60}}
    names = ("Bad_Name!", "a.b", "a" * 64, "", "kube-system", "open-cluster-management-hub")
    insecure = [{"url": "https://a"}, {"url": "http://b"}]
    rows = [(cluster(name), ["metadata.name"]) for name in names]
    rows += [(cluster(leaseDurationSeconds=each), ["spec.leaseDurationSeconds"]) for each in (-1, "60", 2**31)]
    rows += [(cluster(managedClusterClientConfigs=insecure), ["spec.managedClusterClientConfigs[1].url"])]
    check_results(fields, rows)
    changes: dict[str, Any] = {"leaseDurationSeconds": -2, "managedClusterClientConfigs": [{"url": "http://c"}]}
    for field, worse in changes.items():
        (found,) = fields(cluster(**{**UNLIKE_ANY_RULE, field: worse}), cluster(**UNLIKE_ANY_RULE))
        assert found.split("[")[0] == f"spec.{field}"


def fields(new: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    refused = present(refusal(InvalidError, admitted, new, old, NOW))
    assert present(refused.subject).kind == "ManagedCluster"
    return [cause.field for cause in refused.causes]


def test_taint_is_stamped_when_it_is_new_or_changes_and_only_by_the_hub() -> None:
    new = admitted(cluster(taints=[taint(), {**taint(), "key": "other", "timeAdded": EARLIER}]), None, NOW)
    assert [entry["timeAdded"] for entry in new["spec"]["taints"]] == [STAMP, STAMP]
    old = cluster(taints=[taint("x", timeAdded=EARLIER)])
    rows = (
        *((taint("x", timeAdded=EARLIER), EARLIER), (taint("x"), EARLIER), (taint("y"), STAMP)),
        *(({**taint("x"), "effect": "PreferNoSelect"}, STAMP), ({**taint("x"), "key": "new"}, STAMP)),
    )

    def change(new: dict[str, str]) -> dict[str, Any]:
        return admitted(cluster(taints=[new]), old, NOW)

    check_results(lambda new: change(new)["spec"]["taints"][0]["timeAdded"], rows)
    claimed = (taint("y", timeAdded=EARLIER), taint("x", timeAdded="2020-01-01T00:00:00Z"))
    check_refusals(InvalidError, change, [(new, "timeAdded") for new in claimed])
    both = [taint(timeAdded=EARLIER), taint(effect="PreferNoSelect", timeAdded=STAMP)]
    later = admitted(cluster(taints=[*both, taint(effect="NoSelectIfNew")], hubAcceptsClient=True), cluster(taints=both), NOW)
    assert [entry["timeAdded"] for entry in later["spec"]["taints"]] == [EARLIER, STAMP, STAMP]
    assert later["spec"]["taints"][:2] == both, "taints of one key keep the time of each effect"


class CountedTaint(dict[str, str]):
    """Counts how often any of them is read or compared."""

    uses = 0

    def items(self) -> Any:
        CountedTaint.uses += 1
        return super().items()

    def get(self, key: str, default: Any = None) -> Any:
        CountedTaint.uses += 1
        return super().get(key, default)

    def __eq__(self, other: object) -> bool:
        CountedTaint.uses += 1
        return super().__eq__(other)

    __hash__ = None


def test_work_for_taints_grows_linearly_with_their_number() -> None:
    """Writes of the whole hub wait meanwhile, and an object may hold some twenty thousand taints."""
    many = [CountedTaint({**taint(timeAdded=EARLIER), "key": f"k{number}"}) for number in range(1_000)]
    CountedTaint.uses = 0
    later = admitted(cluster(taints=[*many, taint(effect="NoSelectIfNew")]), cluster(taints=many), NOW)
    assert len(many) <= CountedTaint.uses <= 10 * len(many)
    assert [entry["timeAdded"] for entry in later["spec"]["taints"][-2:]] == [EARLIER, STAMP]


def test_stored_values_that_do_not_change_are_never_refused() -> None:
    """A rule that a later release brings must not stop reports about clusters that already break it."""
    stored = cluster(**UNLIKE_ANY_RULE)
    reported = {**stored, "status": {"conditions": []}}
    assert admitted(reported, stored, NOW) == {**reported, **TYPE}
    denied = {**UNLIKE_ANY_RULE, "hubAcceptsClient": False}
    assert admitted(cluster(**denied), stored, NOW)["spec"] == denied
    assert admitted(cluster("default", hubAcceptsClient=False), cluster("default"), NOW)["spec"]["hubAcceptsClient"] is False


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
    own, entry = shares(store, MANAGED_CLUSTERS, EDGE), condition(AVAILABLE.type)
    changed = {"f:status", "f:reason", "f:message"}
    assert changed.isdisjoint(own[f"{HUB_WRITER} status"]["f:status"]["f:conditions"][entry])
    assert own[f"{AGENT_WRITER} status"]["f:status"]["f:conditions"][entry].keys() >= changed


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
    own = shares(store, ADDONS, "metrics", "edge")
    assert own == {"old": {"f:status": {"f:registrations": {}}}, f"{HUB_WRITER} status": {"f:status": {"f:registrations": {}}}}


def test_requests_are_the_agents_and_their_decision_and_certificate_the_hubs(newcomer: Newcomer, store: InlineStore) -> None:
    own = shares(store, REQUESTS, newcomer.issued(newcomer.accepted()))
    assert sorted(own) == [AGENT_WRITER, HUB_WRITER, f"{HUB_WRITER} status"]
    assert "f:spec" not in own[AGENT_WRITER]
    assert request_rules.RECOVERY_ANNOTATION in next(iter(own[HUB_WRITER]["f:metadata"]["f:annotations"].keys() - {"."}))
    assert own[f"{HUB_WRITER} status"]["f:status"].keys() == {"f:conditions", "f:certificate"}


def test_what_came_without_holders_stays_without(store: InlineStore) -> None:
    store.transact(clusters.put, {"metadata": {"name": "edge"}, "spec": {"hubAcceptsClient": True}}, None, OPERATOR)
    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(AVAILABLE,)), "agent")
    assert shares(store, MANAGED_CLUSTERS, "edge") == {}


def test_writers_beyond_the_tenth_become_one() -> None:
    document: dict[str, Any] = {"apiVersion": "v", "metadata": {"labels": {}}}
    before = None
    for number in range(MOST_UPDATERS + 3):
        labels = {**document["metadata"]["labels"], f"l{number}": "x"}
        new = {**document, "metadata": {**document["metadata"], "labels": labels}}
        document, before = tracked(structure_of(MANAGED_CLUSTERS), new, before, f"writer{number:02}", NOW), document
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


def test_services_and_api_server_divide_every_kind_alike() -> None:
    resources = served()

    def check(kind: Kind) -> None:
        resource, form = resources[str(WRITE_PATHS[kind].resource(GROUP_SUFFIX))], structure_of(kind)
        assert form.structure == resource.structures[resource.api_version()]
        assert form.custom is resource.custom
        assert ownership.FIXED.get(kind, ()) == resource.fixed

    check_each(check, [(kind,) for kind in sorted(kinds.WRITE_PATHS)])


def test_declared_values_are_those_of_the_code() -> None:
    schemas = {each.resource.kind: each.resource.schema["properties"] for each in DEFINITIONS}
    rule, cluster = schemas["ApprovalRule"]["spec"]["properties"], schemas["ManagedCluster"]["spec"]["properties"]
    assert CLUSTER_FIELDS.described() in rule["condition"]["description"]
    assert cluster["leaseDurationSeconds"]["default"] == DEFAULT_LEASE_DURATION.total_seconds()
    found = {
        RuleAction: rule["decides"]["items"],
        RequesterKind: rule["requesters"]["items"]["properties"]["kind"],
        ("NoSelect", "PreferNoSelect", "NoSelectIfNew"): cluster["taints"]["items"]["properties"]["effect"],
        Phase: schemas["CertificateAuthority"]["status"]["properties"]["phase"],
        Reason: schemas["Revocation"]["spec"]["properties"]["reason"],
        (EXCLUSIVE, BY_LABELS): schemas["ManagedClusterSet"]["spec"]["properties"]["clusterSelector"]["properties"][
            "selectorType"
        ],
    }
    assert {values: schema["enum"] for values, schema in found.items()} == {values: list(values) for values in found}
