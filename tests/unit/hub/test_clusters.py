"""ManagedClusters and their sets: joining, accepting, reporting, leaving; and why one is not Available."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import delete

from hub.api import managedclustersets
from hub.api.bootstrapcredentials import CredentialBounds
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.clusterdiagnoses import Diagnosis, DiagnosisFinding, FindingState, diagnose
from hub.api.hubreplicas import LOST_AFTER, Replica
from hub.api.liveness import DEFAULT_LEASE_DURATION, Beat, Brake, encode_brake
from hub.api.managedclusters import admission, cluster as rules, duplicates
from hub.api.managedclusters.availability import STALE, Departure
from hub.api.managedclusters.cluster import ClusterClaim, Joined, JoinRequest, StatusReport, joining_document
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, REQUESTS
from hub.api.revocations import RevocationTarget
from hub.ports import Transaction
from hub.registry import clusterdiagnoses as diagnosing, namespaces, owners
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.hubreplicas import service as replicas
from hub.registry.hubreplicas.service import Opened
from hub.registry.liveness import brake, heartbeats
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clocksync, service as clusters
from hub.registry.revocations import revoke
from hub.settings import HubSettings
from hub.store import schema
from machinery.election.lock import Candidate
from machinery.errors import AlreadyExistsError, ConflictError, ForbiddenError, InvalidError, NotFoundError
from machinery.identity import AddOnName, ClusterName, HubId, SerialNumber
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.objects import ChangeType, Key
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal, check_refusals, check_results, present
from tests.fakes.fleetwork import addon, cluster_set, put
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import AGENT, EDGE, OPERATOR, Newcomer, change_cluster

REPORT = StatusReport(conditions=(rules.AVAILABLE,), kubernetes_version="v1.31.2", node_count=3)
SET = "cluster.open-cluster-management.io/clusterset"
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
REPLICA = Replica("hub-0", "here", "i1", "1", "grpc", "https", EPOCH, EPOCH, ready=True)
LEASE = timedelta(seconds=60)


def document_of(store: InlineStore, name: str = "edge") -> dict[str, Any]:
    return dict(store.transact(clusters.find, ClusterName(name)).document)


def ensure(newcomer: Newcomer, **changed: Any) -> Joined:
    fields = {"name": newcomer.cluster, "cluster_uid": newcomer.uid, "agent": newcomer.agent}
    return newcomer.store.transact(clusters.ensure, JoinRequest(**{**fields, **changed}), "agent")


def test_join_makes_a_cluster_once_and_acceptance_is_written_once(newcomer: Newcomer, store: InlineStore) -> None:
    credential = newcomer.bootstrap(uses=1).credential
    reported = {
        "client_configs": (rules.ClientConfig("https://api:6443", b"ca"), rules.ClientConfig("https://other")),
        "annotations": {rules.AGENT_ANNOTATIONS + "x": "1", rules.ACCEPTED_ON: "!"},
    }
    joined, document = ensure(newcomer, credential=credential, **reported), document_of(store)
    assert joined == Joined(created=True, accepted=False, uid=document["metadata"]["uid"])
    configs = [{"url": "https://api:6443", "caBundle": "Y2E="}, {"url": "https://other"}]
    spec = {"hubAcceptsClient": False, "leaseDurationSeconds": 60, "managedClusterClientConfigs": configs}
    assert (document["spec"], document["metadata"]["generation"]) == (spec, 1)
    annotations = {rules.CLUSTER_UID: "uid-1", rules.AGENT_ANNOTATIONS + "x": "1"}
    assert doc.annotations(document) == annotations, "only those that an agent may set"
    stale = store.transact(clusters.find, EDGE)
    newcomer.accept()
    assert document_of(store)["metadata"]["generation"] == 2
    revision = store.state.revision
    newcomer.accept()
    assert ensure(newcomer, credential=credential) == Joined(created=False, accepted=True, uid=joined.uid)
    assert (ensure(newcomer), store.state.revision) == (Joined(created=False, accepted=True, uid=joined.uid), revision)
    check_refusal(ConflictError, store.transact, clusters.put, dict(stale.document), stale, OPERATOR)
    check_refusal(AlreadyExistsError, store.transact, clusters.put, {"metadata": {"name": "edge"}}, None, OPERATOR)
    newcomer.accept(accepted=False)
    assert not rules.is_accepted(document_of(store))


def test_cluster_that_an_operator_entered_is_adopted_by_the_first_that_comes(newcomer: Newcomer, store: InlineStore) -> None:
    entered = {"metadata": {"name": "edge", "labels": {"env": "prod"}}, "spec": {"hubAcceptsClient": True}}
    store.transact(clusters.put, entered, None, OPERATOR)
    credential = newcomer.bootstrap().credential
    assert ensure(newcomer, credential=credential).accepted
    document = document_of(store)
    assert (doc.annotations(document)[rules.CLUSTER_UID], doc.labels(document)) == ("uid-1", {"env": "prod"})
    check_refusal(AlreadyExistsError, ensure, newcomer, credential=credential, cluster_uid="uid-2")


def test_second_cluster_of_the_same_name_is_refused_and_shown(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.accepted()
    credential = present(newcomer.bootstrap(uses=1).credential)
    impostor = JoinRequest(EDGE, "uid-2", AGENT, credential=credential)
    check_refusal(AlreadyExistsError, store.transact, clusters.ensure, impostor, "agent", match="belongs to another cluster")
    assert credential not in store.state.admissions, "a refused join spends no use"
    store.transact(clusters.note_duplicate, impostor, "hub")
    document = document_of(store)
    assert "uid-2" in present(conditions.find(doc.conditions(document), rules.DUPLICATED)).message
    assert rules.is_accepted(document)
    assert doc.annotations(document)[rules.CLUSTER_UID] == "uid-1"
    stranger = newcomer.bootstrap(bounds=CredentialBounds(patterns=("b-*",))).credential
    check_refusal(ForbiddenError, ensure, newcomer, credential=stranger, cluster_uid="uid-2")  # and not that the name is taken

    # with the uid of an accepted cluster, or if it has none (OCM's agent), another credential changes nothing
    newcomer.issued(newcomer.bootstrap())
    other = newcomer.bootstrap(bounds=CredentialBounds(patterns=("*",), labels={"env": "test"})).credential
    joining: dict[str, Any] = {"client_configs": (rules.ClientConfig("https://edge", b"CA"),)}
    joining["annotations"] = {f"{rules.AGENT_ANNOTATIONS}x": "y"}
    for uid in ("uid-1", None):
        change_cluster(store, lambda old, uid=uid: doc.with_annotations(old, {rules.CLUSTER_UID: uid}))  # type: ignore[misc]
        unchanged = document_of(store)
        assert ensure(newcomer, credential=other, **joining).accepted
        assert document_of(store) == unchanged
    assert ensure(newcomer, **joining).accepted  # the agent itself
    changed = document_of(store)
    assert changed["spec"]["managedClusterClientConfigs"][0]["url"] == "https://edge"
    assert doc.annotations(changed).keys() >= {rules.CLUSTER_UID, f"{rules.AGENT_ANNOTATIONS}x"}


def test_join_needs_a_valid_name_a_short_uid_and_a_known_credential(newcomer: Newcomer) -> None:
    credential = newcomer.bootstrap().credential
    check_refusal(InvalidError, ensure, newcomer, credential=credential, cluster_uid="u" * 254, match="253 characters")
    names = ("Edge", "a.b", "", "a" * 64, "-a", "../a", "edge:agent")
    join = lambda name: ensure(newcomer, name=ClusterName(name), credential=credential)  # noqa: E731 - one line
    check_refusals(InvalidError, join, [(name, "cluster name") for name in names])
    check_refusal(ForbiddenError, ensure, newcomer, credential="nobody", match="not known")
    check_refusal(NotFoundError, ensure, newcomer, match="register again with a bootstrap kubeconfig")
    assert ensure(newcomer, credential=credential, cluster_uid="u" * 253).created


def test_report_is_taken_from_accepted_clusters_once(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> None:
    def report() -> object:
        return store.transact(clusters.report_status, EDGE, REPORT, "agent")

    check_refusal(NotFoundError, report)
    newcomer.join(newcomer.bootstrap())
    check_refusal(ForbiddenError, report, match="hubctl accept edge")
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    report()
    assert document_of(store)["status"]["capacity"] == {"nodes": "3"}
    revision = store.state.revision
    clock.advance(timedelta(hours=1))
    assert (store.state.revision, getattr(report(), "revision", None)) == (revision, revision)
    newcomer.accept(accepted=False)
    document = document_of(store)
    assert {entry["type"] for entry in doc.conditions(document)} == {conditions.HUB_ACCEPTED, conditions.AVAILABLE}
    assert document["status"]["version"] == {"kubernetes": "v1.31.2"}


def test_removed_cluster_takes_its_beats_and_certificates_with_it(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.registered()
    store.transact(lambda tx: tx.heartbeats.store([Beat(EDGE, timedelta(), available=True)]))
    assert store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE), OPERATOR)).stored.key == Key("", "edge")
    assert (store.state.log[-1].type, store.state.beats) == (ChangeType.DELETED, {})
    revoked = {record.purpose: record.revoked_reason for record in store.state.certificates.values()}
    reason = "ClusterDeleted"
    assert revoked == {Purpose.BOOTSTRAP: None, Purpose.AGENT: reason, Purpose.RECOVERY: reason}


def test_addon_report_sets_conditions_once(store: InlineStore, clock: ManualClock) -> None:
    def report(name: str, *reported: Condition, cluster: ClusterName = EDGE) -> None:
        store.transact(addons.report, cluster, AddOnName(name), reported, "agent")

    store.transact(addons.put, {"metadata": {"name": "work", "namespace": "edge"}}, None, OPERATOR)
    condition = Condition("Available", "True", "ManagedClusterAddOnLeaseUpdated", "fine")
    report("work", condition)
    revision = store.state.revision
    clock.advance(timedelta(minutes=1))
    report("work", condition)
    check_refusal(NotFoundError, report, "other")
    check_refusal(NotFoundError, report, "work", cluster=ClusterName("other"))
    check_refusal(InvalidError, report, "work", *(Condition(f"C{n}", "True", "R", "") for n in range(33)))
    assert store.state.revision == revision
    stored = store.transact(addons.find, EDGE, AddOnName("work"))
    assert stored.document["apiVersion"] == "addon.open-cluster-management.io/v1beta1"
    assert doc.conditions(stored.document) == [{**condition.to_document(), "lastTransitionTime": "2026-01-01T00:00:00Z"}]


def test_a_rebuilt_cluster_takes_the_name_by_an_operators_word(newcomer: Newcomer, store: InlineStore) -> None:
    credential = newcomer.bootstrap().credential
    ensure(newcomer, credential=credential)
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    store.transact(lambda tx: tx.certificates.add(certificate(tx)))
    store.transact(lambda tx: tx.heartbeats.claim(EDGE, 7))
    rebuilt = JoinRequest(EDGE, "uid-2", AGENT, credential=credential)
    store.transact(clusters.note_duplicate, rebuilt, "hub")
    unnamed = store.transact(clusters.find, EDGE)
    store.transact(clusters.put, doc.with_metadata(unnamed.document, annotations=None), unnamed, OPERATOR)
    assert [each.revoked_at for each in store.state.certificates.values() if each.cluster == EDGE] == [None]
    stored = store.transact(clusters.find, EDGE)
    store.transact(clusters.put, doc.with_annotations(stored.document, doc.annotations(unnamed.document)), stored, OPERATOR)
    before = store.transact(clusters.find, EDGE)
    assert doc.annotations(before.document)[duplicates.WANTED_BY] == "uid-2"
    store.transact(clusters.put, doc.with_annotations(before.document, {rules.CLUSTER_UID: "uid-2"}), before, OPERATOR)
    after = store.transact(clusters.find, EDGE)
    assert (after.uid, rules.is_accepted(after.document)) == (before.uid, True)
    assert (doc.annotations(after.document), duplicates.reason(after.document)) == ({rules.CLUSTER_UID: "uid-2"}, "")
    assert [each.revoked_reason for each in store.state.certificates.values() if each.cluster == EDGE] == ["ClusterRebuilt"]
    assert EDGE not in store.state.beats
    assert store.transact(clusters.ensure, rebuilt, "agent").accepted


def certificate(tx: Transaction) -> CertificateRecord:
    serial, ends = SerialNumber(2**158 + 7), tx.now + timedelta(days=1)
    return replace(CertificateRecord(serial, Purpose.AGENT, "u", (), tx.now, ends, "k", tx.now), cluster=EDGE, agent=AGENT)


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STAMP = {"lastTransitionTime": "2026-01-02T03:04:05Z"}
JOINED = Condition(conditions.JOINED, "True", "ManagedClusterJoined", "Managed cluster joined")
FULL = StatusReport(
    conditions=(JOINED, rules.AVAILABLE),
    capacity={"cpu": "4"},
    allocatable={"cpu": "3"},
    kubernetes_version="v1.31.2",
    claims=(ClusterClaim("id.k8s.io", "6c1f2a"),),
    node_count=5,
)


def test_agent_sets_the_listed_labels_once_and_none_that_decide() -> None:
    asked = {"region": "eu", "regional": "x", "example.com/tier": "1", "example.com.evil/x": "1", SET: "prod", "a b": "c"}
    rows: tuple[tuple[tuple[str, ...], set[str]], ...] = (
        *(((), set()), (("region",), {"region"}), (("example.com/*",), {"example.com/tier"})),
        (("example.com/tier", "env"), {"example.com/tier"}),
        (("*", "example.com", SET, "open-cluster-management.io/*", "cluster.open-cluster-management.io/*"), set()),
    )
    check_results(lambda patterns: set(admission.permitted_join_labels(asked, patterns)), rows)
    assert admission.permitted_join_labels({"env": "a b", "example.com/": "x"}, ("env", "example.com/*")) == {}, (
        "no label of Kubernetes"
    )

    patterns = (SET, "kubernetes.io/*", "node.kubernetes.io/x", "k8s.io/a", "*", "a/*/b", "-x", "a b")
    wrong = [(pattern, "reserved|neither") for pattern in patterns]
    check_refusals(ValidationError, lambda pattern: HubSettings.model_validate({"join_labels": (pattern,)}), wrong)
    assert HubSettings.model_validate({"join_labels": "region,example.com/*"}).join_labels == ("region", "example.com/*")
    first = JoinRequest(EDGE, "uid-1", labels={"region": "eu", "env": "test"})
    assert joining_document(first, DEFAULT_LEASE_DURATION)["metadata"]["labels"] == {"region": "eu", "env": "test"}
    joined = rules.adopted({"metadata": {"name": "edge", "labels": {"env": "prod"}}}, first)
    assert joined["metadata"]["labels"] == {"region": "eu", "env": "prod"}
    assert rules.adopted({**joined, "metadata": {**joined["metadata"], "labels": {}}}, first)["metadata"]["labels"] == {}


def test_complete_report_replaces_the_agents_fields_and_an_incomplete_one_its_conditions() -> None:
    before = {"spec": {"hubAcceptsClient": True}, "status": {"clusterClaims": [{"name": "old", "value": "x"}], "kept": 1}}
    after = rules.with_report(before, FULL, NOW)
    assert after["spec"] == before["spec"]
    assert after["status"] == {
        "kept": 1,
        "capacity": {"cpu": "4", "nodes": "5"},
        "allocatable": {"cpu": "3"},
        "version": {"kubernetes": "v1.31.2"},
        "clusterClaims": [{"name": "id.k8s.io", "value": "6c1f2a"}],
        "conditions": [{**JOINED.to_document(), **STAMP}, {**rules.AVAILABLE.to_document(), **STAMP}],
    }
    assert not doc.differs(rules.with_report(after, FULL, NOW + timedelta(hours=1)), after), "the same report again"
    last = rules.with_report(after, StatusReport(conditions=(rules.UNAVAILABLE,), complete=False), NOW + timedelta(minutes=1))
    assert {**last["status"], "conditions": None} == {**after["status"], "conditions": None}
    available = present(conditions.find(doc.conditions(last), conditions.AVAILABLE))
    assert (available.status, available.last_transition_time) == ("False", NOW + timedelta(minutes=1))


def test_report_beyond_the_bounds_or_of_the_hubs_conditions_is_not_taken() -> None:
    kinds = [*sorted({*rules.HUB_CONDITIONS, STALE}), "SomethingNew"]
    report = StatusReport(conditions=tuple(Condition(kind, "True", "Mine", "") for kind in kinds), complete=False)
    assert [entry["type"] for entry in doc.conditions(rules.with_report({}, report, NOW))] == ["SomethingNew"]
    reports = (
        StatusReport(conditions=(Condition("Available", "Perhaps", "R", "m"),)),
        StatusReport(conditions=(Condition("", "True", "R", "m"),)),
        StatusReport(conditions=(Condition("X", "True", "R", "m" * 40000),)),
        StatusReport(conditions=tuple(Condition(f"C{number}", "True", "R", "m") for number in range(33))),
        StatusReport(claims=(ClusterClaim("", "x"),)),
        StatusReport(claims=(ClusterClaim("x" * 254, "x"),)),
        StatusReport(claims=(ClusterClaim("x", ""),)),
        StatusReport(claims=(ClusterClaim("x", "v" * 1025),)),
        StatusReport(claims=tuple(ClusterClaim(f"c{number}", "v") for number in range(257))),
    )
    check_refusals(InvalidError, lambda report: rules.with_report({}, report, NOW), [(report, "") for report in reports])
    specs: list[dict[str, Any]] = [{"leaseDurationSeconds": 5}, {"leaseDurationSeconds": 0}, {}]
    assert [rules.lease_duration({"spec": spec}).total_seconds() for spec in specs] == [5, 60, 60]


CLUSTERS = {
    "a": {managedclustersets.LABEL: "one", "region": "eu"},
    "b": {managedclustersets.LABEL: "two", "region": "us"},
    "c": {"region": "eu"},
}


def test_set_has_the_clusters_that_its_selector_matches() -> None:
    def members(name: str, selector: dict[str, Any]) -> str:
        found = present(managedclustersets.cluster_set({"metadata": {"name": name}, "spec": {"clusterSelector": selector}}))
        assert (found.query() is None) == (found.selector is None)
        return "".join(name for name, labels in CLUSTERS.items() if found.has(labels))

    def selected(selector: Any) -> dict[str, Any]:
        return {"selectorType": "LabelSelector", "labelSelector": selector}

    rows: tuple[tuple[str, dict[str, Any], str], ...] = (
        *(("one", {"selectorType": "ExclusiveClusterSetLabel"}, "a"), ("one", {}, "a")),
        ("none", {"selectorType": "ExclusiveClusterSetLabel"}, ""),
        *(("one", selected({"matchLabels": {"region": "eu"}}), "ac"), ("one", selected({}), "abc")),
        *(("one", {"selectorType": "LabelSelector"}, ""), ("one", selected(None), "")),
        ("one", {"selectorType": "Another", "labelSelector": {}}, ""),
        ("one", selected({"matchLabels": {"not a label": "x"}}), ""),
        ("one", selected({"matchExpressions": [{"key": "region", "operator": "NotIn", "values": ["us"]}]}), "ac"),
        ("one", selected({"matchExpressions": [{"key": managedclustersets.LABEL, "operator": "DoesNotExist"}]}), "c"),
    )
    check_results(members, rows)
    assert managedclustersets.cluster_set(doc.deleting(cluster_set("one"), NOW)) is None, (
        "a set that is being deleted has no members"
    )


@pytest.fixture
def world(newcomer: Newcomer, clock: ManualClock) -> "World":
    return World(newcomer, clock)


class World:
    """A hub with a leader, and a cluster that goes its way into it as far as a test wants."""

    def __init__(self, newcomer: Newcomer, clock: ManualClock) -> None:
        self.newcomer = newcomer
        self.clock = clock
        self.store = newcomer.store
        self.store.transact(namespaces.ensure_predefined)
        self.store.transact(replicas.begin, REPLICA)
        self.store.transact(lambda tx: tx.leaders.take(None, Candidate("hub-0", "i1"), timedelta(seconds=15)))

    def diagnose(self, name: ClusterName = EDGE) -> Diagnosis:
        return self.store.transact(lambda tx: diagnose(diagnosing.facts(tx, name)))

    def found(self, step: str) -> DiagnosisFinding:
        return next(each for each in self.diagnose().findings if each.step == step)

    def cause(self, name: ClusterName = EDGE) -> tuple[str, str]:
        cause = present(self.diagnose(name).cause)
        assert cause.advice, "each fault comes with advice"
        return cause.reason, cause.said

    def shows(self, reason: str, words: str) -> None:
        found, message = self.cause()
        assert (found, words in message) == (reason, True), message

    def connect(self) -> None:
        self.store.transact(replicas.open_session, Opened(EDGE, AGENT, "s1", "v1", "hub-0"))

    def beat(self, *, available: bool = True) -> None:
        self.store.transact(lambda tx: tx.heartbeats.store([Beat(EDGE, timedelta(), available=available)]))
        self.store.transact(clocksync.set_condition, EDGE, rules.AVAILABLE if available else rules.UNAVAILABLE, "agent")

    def live(self) -> None:
        self.newcomer.registered()
        self.store.transact(clocksync.set_condition, EDGE, rules.ACCEPTED, "hub")
        self.connect()
        self.beat()

    def pass_time(self, time: timedelta) -> None:
        self.clock.advance(time)
        self.store.transact(replicas.beat, REPLICA)


def test_cluster_that_is_well_is_ok_at_every_step(world: World) -> None:
    world.live()
    found = world.diagnose()
    assert (found.is_well, found.cause, {each.state for each in found.findings}) == (True, None, {FindingState.OK})
    steps = ["hub", "cluster", "acceptance", "certificate", "session", "beats", "API server"]
    assert [each.step for each in found.findings] == steps


def test_agent_that_has_not_come_and_its_bootstrap_credential(world: World) -> None:
    """The best of several credentials counts."""
    world.newcomer.credential(cluster=ClusterName("other"), uses=1)
    world.shows("NoBootstrapCredential", 'no cluster "edge"')
    assert [each.step for each in world.diagnose().findings] == ["hub", "cluster"], "nothing else is looked at"
    revoked, _ = world.newcomer.credential(cluster=EDGE, uses=1)
    world.store.transact(credentials.revoke, revoked.id, OPERATOR)
    assert world.cause()[0] == "BootstrapCredentialRevoked"
    requester, other = world.newcomer.bootstrap(uses=1), Newcomer(world.store, cluster=ClusterName("far"))
    other.join(requester)
    other.accept()
    other.issued(requester)
    assert world.cause()[0] == "BootstrapCredentialUsedUp"
    world.newcomer.credential(cluster=EDGE, uses=1, lifetime=timedelta(hours=1))
    assert world.cause()[0] == "NotRegisteredYet"
    world.pass_time(timedelta(hours=1))
    assert world.cause()[0] == "BootstrapCredentialExpired"
    record, _ = world.newcomer.credential(cluster=EDGE, uses=1)
    reason, text = world.cause()
    assert (reason, record.id in text, world.diagnose().findings[-1].state) == ("NotRegisteredYet", True, FindingState.WAITING)


def test_cluster_that_an_operator_entered_and_whose_agent_never_asked(world: World) -> None:
    entered = rules.joining_document(JoinRequest(EDGE, ""), LEASE)
    world.store.transact(lambda tx: clocksync.put(tx, doc.with_spec(entered, hubAcceptsClient=True), None, OPERATOR))
    world.shows("NoBootstrapCredential", "has requested no certificate")


def test_request_that_waits_for_decisions_or_its_signature_or_fails(world: World) -> None:
    requester = world.newcomer.bootstrap()
    world.newcomer.join(requester)
    name, found = world.newcomer.submit(requester), world.diagnose()
    waiting = [(each.reason, each.advice) for each in found.findings if each.state is FindingState.WAITING]
    assert waiting == [("NotAccepted", "hubctl accept edge"), ("NotApproved", f"hubctl certificate approve {name}")]
    world.newcomer.accept()
    assert world.cause()[0] == "NotApproved"
    world.newcomer.approve(name)
    assert world.found("request").state is FindingState.WAITING, "signing takes a moment"
    world.pass_time(timedelta(minutes=1))
    assert (world.cause()[0], world.found("request").state) == ("NotSigned", FindingState.BROKEN)
    stored, failed = world.newcomer.stored(name), Condition("Failed", "True", "SignerValidationFailure", "usages")
    document = doc.with_status_condition(stored.document, failed, world.clock.now())
    world.store.transact(lambda tx: tx.objects.put(REQUESTS, document, stored, "hub"))
    assert world.cause()[0] == "RequestFailed"


def test_denied_request_denied_cluster_and_revoked_certificate(world: World) -> None:
    name = world.newcomer.submit(world.newcomer.accepted())
    deny = lambda tx: requests.decide(tx, name, approve=False, reason="NotOurs", message="who is this", actor=OPERATOR)  # noqa: E731 - one line
    world.store.transact(deny)
    world.shows("RequestDenied", "NotOurs: who is this")
    world.live()
    world.newcomer.accept(accepted=False)
    assert world.cause()[0] == "Denied"
    assert not any(each.step == "beats" for each in world.diagnose().findings)
    world.newcomer.accept()
    world.store.transact(revoke, RevocationTarget(cluster=EDGE), "KeyCompromise", OPERATOR)
    world.shows("Revoked", "KeyCompromise")
    assert world.diagnose().findings[-1].step == "certificate", "consequences are not listed beside it"


def test_a_certificate_that_ended_while_the_agent_was_off(world: World) -> None:
    world.live()
    world.pass_time(timedelta(days=28))
    assert world.found("certificate").reason == "EndsSoon"
    world.pass_time(timedelta(days=3))
    assert world.cause()[0] == "ExpiredRecoverable"
    world.pass_time(timedelta(days=60))
    assert world.cause()[0] == "Expired"


def test_sessions_of_an_agent(world: World) -> None:
    world.newcomer.registered()
    found = world.diagnose()
    assert [each.reason for each in found.findings if each.state is FindingState.BROKEN] == ["NoSession", "NeverBeat"]
    assert all(each.state is FindingState.OK or each.advice for each in found.findings), "each says what to do"
    world.connect()
    world.store.transact(lambda tx: tx.heartbeats.store([Beat(EDGE, timedelta(), available=None)]))
    assert world.cause()[0] == "NotReportedYet", "the agent has given no verdict"
    world.beat()
    world.store.transact(replicas.close_session, EDGE, AGENT, "s1")
    assert (world.cause()[0], world.diagnose().is_well) == ("NoSession", False)
    world.connect()
    world.store.transact(replicas.open_session, Opened(EDGE, type(AGENT)("agent-2"), "s2", "v1", "hub-0"))
    assert world.cause()[0] == "TwoAgents"


def test_agent_that_uses_the_kubernetes_api_needs_no_session(world: World) -> None:
    world.newcomer.registered()
    world.beat()
    assert (world.found("session").reason, world.diagnose().is_well) == ("NoneNeeded", True)


def test_a_replica_that_is_lost_with_its_sessions(world: World) -> None:
    world.live()
    world.clock.advance(LOST_AFTER * 2)
    world.store.transact(replicas.begin, replace(REPLICA, name="hub-1", home="there"))
    lock = world.store.state.leader
    world.store.transact(lambda tx: tx.leaders.take(lock, Candidate("hub-1", "i2"), timedelta(seconds=15)))
    assert world.cause()[0] == "ReplicaLost"


def test_a_hub_that_nobody_leads(world: World) -> None:
    world.live()
    world.clock.advance(timedelta(minutes=1))
    world.shows("NoLeader", "hub-0")
    world.store.transact(replicas.beat, REPLICA)
    assert world.found("hub").state is FindingState.OK, "a single replica renews nothing"
    world.store.execute(delete(schema.leaders))
    assert world.cause()[0] == "NoLeader"


def test_beats_that_come_late_and_then_not_at_all(world: World) -> None:
    world.live()
    world.pass_time(2 * LEASE)
    assert (world.found("beats").reason, world.diagnose().cause) == ("Late", None)
    world.pass_time(4 * LEASE)
    assert world.cause()[0] == "Silent"
    world.store.transact(heartbeats.expire, EDGE, window=timedelta(seconds=1), since=EPOCH, actor="hub")
    assert world.diagnose().available == conditions.UNKNOWN


def test_unavailable_api_server_then_another_hub_then_deletion(world: World) -> None:
    world.live()
    world.beat(available=False)
    assert world.cause() == ("ManagedClusterKubeAPIServerUnavailable", "The kube-apiserver is not ok")
    world.store.transact(owners.record_handover, Departure(EDGE, HubId("b2f1d5a0-0000-4000-8000-000000000002"), 1), 0, "agent")
    world.shows("ReportsElsewhere", "b2f1d5a0")
    change_cluster(world.store, lambda old: doc.with_metadata(old, finalizers=["example.org/waits"]))
    world.store.transact(lambda tx: clocksync.remove(tx, clocksync.find(tx, EDGE), OPERATOR))
    world.shows("Deleting", "example.org/waits")


def test_warnings_leave_a_cluster_well(world: World) -> None:
    world.live()
    world.store.transact(clocksync.note_duplicate, JoinRequest(EDGE, "uid-2"), "agent")
    assert (world.found("duplicates").state, world.diagnose().is_well) == (FindingState.WARNING, True)
    assert "--rebuilt" in world.found("duplicates").advice
    for skew in (timedelta(hours=1), -timedelta(hours=1)):
        world.store.transact(clocksync.note_clock_skew, EDGE, skew, timedelta(), "hub")
        assert (world.found("clock").state, world.diagnose().is_well) == (FindingState.WARNING, True), skew
        assert "NTP" in world.found("clock").advice
    for name, status in (("well", "True"), ("ill", "False")):
        world.store.transact(put, ADDONS, addon(name, EDGE, status))
    assert (world.found("add-ons").state, world.found("add-ons").said) == (FindingState.WARNING, "not Available: ill")
    held = Brake(since=world.clock.now(), silent=20, fleet=50)
    world.store.transact(lambda tx: tx.facts.set(brake.FACT, encode_brake(held)))
    for _ in range(3):
        world.beat(available=False)
        world.beat()
    assert [world.found(step).reason for step in ("brake", "flaps")] == ["BrakeHolds", "Flaps"]
    assert world.diagnose().is_well
