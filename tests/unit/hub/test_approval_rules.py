"""ApprovalRules: what each part of one asks, what they decide, and what they never do."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from hub.api import approvalrules as rules
from hub.api.approvalrules import ApprovalRule, RequesterKind, RequesterRecord, RuleAction, RuleInput, read_rule
from hub.api.bootstrapcredentials import CredentialBounds
from hub.api.certificatesigningrequests import Requester, RequestPhase
from hub.api.managedclusters import cluster as clusters_rules
from hub.api.meta import document as doc
from hub.api.meta.change import APPROVAL_RULES
from hub.registry.approvalrules import approval as approving, service as approval_rules
from hub.registry.approvalrules.approval import ApprovalOutcome
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.generic import objects as writing
from hub.registry.managedclusters import service as clusters
from machinery.errors import ForbiddenError, InvalidError
from machinery.identity import CLUSTER_LABEL, SUBJECT_PREFIX, CertificateSubject, ClusterName
from machinery.meta import conditions
from machinery.meta.objects import Key
from tests.checks import CASE_FILES, check_each, check_refusal, check_results, present, refusal
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import EDGE, OPERATOR, Newcomer, fresh_newcomer

TABLES = yaml.safe_load((CASE_FILES / "approval-rules.yaml").read_text())

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLUSTER: dict[str, Any] = TABLES["cluster"]
TOKEN = RequesterRecord(RequesterKind.CREDENTIAL, "c1", "system:bootstrap:c1", ("system:bootstrappers:managedcluster",))
RENEWING = RequesterRecord(
    RequesterKind.AGENT, "system:open-cluster-management:edge-1:a", "system:open-cluster-management:edge-1:a"
)
ASKERS = {
    "credential": TOKEN,
    "credential of that name": replace(TOKEN, name="ci-robot"),
    "robot": RequesterRecord(RequesterKind.USER, "ci-robot", "ci-robot", ("robots",)),
    "agent": RENEWING,
    "nobody": None,
}


def rule(**spec: Any) -> ApprovalRule:
    return read_rule({"metadata": {"name": "r"}, "spec": {"decides": ["Accept", "Approve"], **spec}})


def candidate(
    asker: RequesterRecord | None = TOKEN, document: dict[str, Any] | None = CLUSTER, name: str = "edge-1"
) -> RuleInput:
    return RuleInput(ClusterName(name), document, NOW, {"spec": {"expirationSeconds": 3600}}, asker, "agent-1")


def test_all_parts_of_a_rule_must_fit() -> None:
    check_results(lambda spec, asker: rule(**spec).fits(RuleAction.APPROVE, candidate(ASKERS[asker])), TABLES["fits"])
    chosen = rule(clusterSelector={"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]})
    assert not chosen.fits(RuleAction.APPROVE, candidate(document=None)), "labels of an unknown cluster fit no selector"


def test_rule_that_cannot_decide_is_refused_with_field_and_reason() -> None:
    def check(spec: dict[str, Any], field: str, reason: str) -> None:
        (cause,) = present(refusal(InvalidError, rule, **spec)).causes
        assert (cause.field, reason in cause.message) == (field, True), cause

    check_each(check, TABLES["refused"])


def put_rule(store: InlineStore, name: str, **spec: Any) -> None:
    document = {"metadata": {"name": name}, "spec": {"decides": ["Accept", "Approve"], "clusterNames": ["*"], **spec}}

    store.transact(lambda tx: approval_rules.put(tx, document, tx.objects.get(APPROVAL_RULES, Key("", name)), OPERATOR))


def review(newcomer: Newcomer, name: str) -> ApprovalOutcome | None:
    return newcomer.store.transact(lambda tx: approving.review(tx, name, approving.rules_in(tx, ()), "hub"))


def accept(newcomer: Newcomer) -> ApprovalOutcome | None:
    return newcomer.store.transact(lambda tx: approving.accept(tx, newcomer.cluster, approving.rules_in(tx, ())))


def cluster_of(newcomer: Newcomer) -> dict[str, Any]:
    return dict(newcomer.store.transact(clusters.find, newcomer.cluster).document)


def last_actor(store: InlineStore) -> str:
    return store.transact(lambda tx: tx.changes.since(tx.changes.newest() - 1))[-1].actor


def test_decision_names_its_rule_in_condition_and_change_log(newcomer: Newcomer, store: InlineStore) -> None:
    put_rule(store, "b", clusterNames=["edge*"], decides=["Accept"])
    put_rule(store, "a", clusterNames=["other*"])
    requester = newcomer.bootstrap()
    newcomer.join(requester)
    name = newcomer.submit(requester)
    assert review(newcomer, name) is None, "a rule decides only what its spec lists"
    put_rule(store, "b", clusterNames=["edge*"])
    outcome = present(review(newcomer, name))
    assert [(each.rule, each.action, each.cluster) for each in outcome.decisions] == [("b", RuleAction.APPROVE, "edge")]
    state = newcomer.state(name)
    assert (state.phase, state.reason) == (RequestPhase.APPROVED, "AutoApprovedByHubCSRApprovingController")
    assert (state.message, last_actor(store)) == ('Approved by the rule "b".', "system:muster:rule:b")
    put_rule(store, "b", clusterNames=["edge*"], decides=["Accept"])
    assert accept(newcomer) is not None
    assert last_actor(store) == "system:muster:rule:b"
    accepted = clusters_rules.accepted_condition(cluster_of(newcomer))
    assert (accepted.reason, accepted.message) == ("HubClusterAdminAccepted", 'Accepted by hub cluster admin by the rule "b"')


def test_dry_run_reports_its_decision_once_and_decides_nothing(newcomer: Newcomer, store: InlineStore) -> None:
    put_rule(store, "a", dryRun=True)
    requester = newcomer.bootstrap()
    newcomer.join(requester)
    name = newcomer.submit(requester)
    assert [(each.rule, each.dry_run) for each in present(review(newcomer, name)).decisions] == [("a", True)]
    assert (review(newcomer, name), newcomer.state(name).phase) == (None, RequestPhase.PENDING)
    (entry,) = doc.conditions(newcomer.stored(name).document)
    assert (entry["type"], entry["reason"]) == ("ApprovalRuleDryRun", "WouldApprove")
    assert entry["message"] == 'In a dry run, a rule would approve this request: "a".'
    assert accept(newcomer) is not None
    assert accept(newcomer) is None
    document = cluster_of(newcomer)
    assert not clusters_rules.is_accepted(document)
    condition = present(conditions.find(doc.conditions(document), "ApprovalRuleDryRun"))
    assert condition.message == 'In a dry run, a rule would accept this cluster: "a".'
    put_rule(store, "b")
    assert review(newcomer, name) is not None
    assert newcomer.state(name).message == 'Approved by the rule "b".'
    report = clusters_rules.StatusReport(conditions=(rules.dry_run_condition("forged"),))
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, clusters_rules.ACCEPTED, "hub")
    store.transact(clusters.report_status, EDGE, report, "agent")
    kept = conditions.find(doc.conditions(cluster_of(newcomer)), rules.DRY_RUN)
    assert (kept.message if kept else "") != rules.dry_run_condition("forged").message, "an agent cannot set this condition"


def test_rule_with_requesters_accepts_only_clusters_that_one_of_them_asked_for(newcomer: Newcomer, store: InlineStore) -> None:
    """OCM accepts every new ManagedCluster under its approver's gate, by any author (weakness 2)."""
    requester = newcomer.bootstrap()
    put_rule(store, "a", requesters=[{"kind": "BootstrapCredential", "name": str(requester.credential)}])
    put_rule(store, "b", requesters=[{"kind": "User", "name": "robot"}])
    newcomer.join(requester)
    assert accept(newcomer) is None
    other = Newcomer(store, cluster=ClusterName("other"), uid="uid-2")
    other.join(other.bootstrap())
    other.submit(other.bootstrap())
    assert accept(other) is None
    store.transact(requests.put, posted(other, {CLUSTER_LABEL: "edge"}), None, Requester("robot"))
    assert accept(newcomer) is None, "the label names edge, but the subject names other"
    assert accept(other) is None, "the subject names other, but the label names edge"
    newcomer.submit(requester)
    assert accept(newcomer) is not None


def test_no_rule_accepts_or_approves_a_cluster_that_an_operator_denied(newcomer: Newcomer, store: InlineStore) -> None:
    """OCM 5.2: auto-accept annotates a cluster that is accepted already."""
    requester, other = newcomer.accepted(), Newcomer(store, cluster=ClusterName("other"), uid="uid-2")
    other.accepted()
    store.transact(clusters.set_condition, EDGE, clusters_rules.ACCEPTED, "hub")
    newcomer.accept(accepted=False)
    put_rule(store, "a")
    assert (accept(newcomer), review(newcomer, newcomer.submit(requester))) == (None, None)
    assert accept(other) == ApprovalOutcome()
    assert clusters_rules.ACCEPTED_ON in doc.annotations(cluster_of(other))
    assert clusters_rules.accepted_condition(cluster_of(other)).message == "Accepted by hub cluster admin"
    other.accept(accepted=False)
    assert accept(other) is None
    assert approving.is_open(CLUSTER)
    for decided in (
        doc.with_annotations(CLUSTER, {clusters_rules.ACCEPTED_ON: "x"}),
        doc.with_status_condition(CLUSTER, clusters_rules.DENIED, NOW),
        doc.deleting(CLUSTER, NOW),
    ):
        assert not approving.is_open(decided)


def test_a_rule_of_another_version_decides_nothing(newcomer: Newcomer, store: InlineStore) -> None:
    """What this hub cannot read of a rule it does not pass over: the whole rule decides nothing."""
    put_rule(store, "a")
    stored = present(store.transact(lambda tx: tx.objects.get(APPROVAL_RULES, Key("", "a"))))
    later = doc.with_spec(stored.document, condition="zone == 1")
    store.transact(lambda tx: tx.objects.put(APPROVAL_RULES, later, stored, "later"))
    newcomer.join(newcomer.bootstrap())
    assert accept(newcomer) is None


def posted(newcomer: Newcomer, labels: dict[str, str], usages: tuple[str, ...] = ("client auth",)) -> dict[str, Any]:
    request = doc.base64_text(newcomer.request())
    spec = {"request": request, "signerName": "kubernetes.io/kube-apiserver-client", "usages": list(usages)}
    return {"metadata": {"name": "csr-1", "labels": labels}, "spec": spec}


def is_approved(
    labels: dict[str, str],
    usages: tuple[str, ...] = ("client auth",),
    user: str = "robot",
    subject: CertificateSubject | None = None,
) -> bool:
    """Whether a rule for the user "robot" approves such a request of a user."""
    newcomer = fresh_newcomer()
    put_rule(newcomer.store, "a", requesters=[{"kind": "User", "name": "robot"}])
    document = posted(newcomer, labels, usages)
    document["spec"]["request"] = doc.base64_text(newcomer.request(subject))
    newcomer.store.transact(requests.put, document, None, Requester(user))
    review(newcomer, "csr-1")
    return newcomer.state("csr-1").phase is RequestPhase.APPROVED


def test_a_bound_only_cluster_registers_with_a_credential_for_its_name_alone(newcomer: Newcomer, store: InlineStore) -> None:
    """As for a cluster that was accepted on another hub: neither a wider credential nor a rule for users takes its name."""
    put_rule(store, "any", requesters=[{"kind": "BootstrapCredential"}, {"kind": "User", "name": "robot"}])
    notes = {"annotations": {clusters_rules.BOUND_ONLY: "true"}}
    new = {"metadata": {"name": "edge", **notes}, "spec": {"hubAcceptsClient": True}}
    earlier = newcomer.submit(newcomer.bootstrap())
    store.transact(clusters.put, new, None, OPERATOR)
    review(newcomer, earlier)
    assert newcomer.state(earlier).phase is RequestPhase.PENDING, "the credential was wider when it was admitted, too"
    for bounds in (CredentialBounds(), CredentialBounds(patterns=("edge",)), CredentialBounds(cluster_set="lab")):
        requester = newcomer.bootstrap(bounds=bounds)
        check_refusal(ForbiddenError, newcomer.join, requester, match="for this name alone")
        check_refusal(ForbiddenError, newcomer.submit, requester, match="for this name alone")
    store.transact(requests.put, posted(newcomer, {CLUSTER_LABEL: "edge"}), None, Requester("robot"))
    review(newcomer, "csr-1")
    assert newcomer.state("csr-1").phase is RequestPhase.PENDING
    own = newcomer.bootstrap(cluster=EDGE)
    newcomer.join(own)
    newcomer.key = Newcomer(store).key
    name = newcomer.submit(own)
    review(newcomer, name)
    assert newcomer.state(name).phase is RequestPhase.APPROVED


def test_only_strict_requests_of_a_rules_user_are_approved() -> None:
    """OCM 5.4, bootstrap and validation: no label, another label, another user, other usages than a client's."""
    edge, client = {CLUSTER_LABEL: "edge"}, ("client auth",)
    rows: tuple[tuple[dict[str, str], tuple[str, ...], str, bool], ...] = (
        *((edge, client, "robot", True), (edge, (*client, "digital signature", "key encipherment"), "robot", True)),
        *((edge, client, "robot2", False), ({CLUSTER_LABEL: "edge2"}, client, "robot", False)),
        *(({}, client, "robot", False), (edge, (*client, "server auth"), "robot", False)),
        (edge, ("digital signature",), "robot", False),
    )
    check_results(is_approved, rows)


def test_only_the_exact_subject_of_the_clusters_agent_is_approved() -> None:
    """OCM 5.4, the attack set of CVE-2026-4740: a longer CN, no agent, another cluster in CN, O or both, no O, case."""
    rows = (
        (f"{SUBJECT_PREFIX}edge:agent-1", (f"{SUBJECT_PREFIX}edge",), True),  # without the group of all clusters
        (f"{SUBJECT_PREFIX}edge:agent-1:x", (f"{SUBJECT_PREFIX}edge",), False),
        (f"{SUBJECT_PREFIX}edge", (f"{SUBJECT_PREFIX}edge",), False),
        (f"{SUBJECT_PREFIX}edge1:agent-1", (f"{SUBJECT_PREFIX}edge1",), False),
        (f"{SUBJECT_PREFIX}edge:agent-1", (f"{SUBJECT_PREFIX}edge1",), False),
        (f"{SUBJECT_PREFIX}edge:agent-1", (f"{SUBJECT_PREFIX}edge", "system:masters"), False),
        (f"{SUBJECT_PREFIX}edge:agent-1", (), False),
        (f"{SUBJECT_PREFIX}Edge:agent-1", (f"{SUBJECT_PREFIX}Edge",), False),
        ("system:open-cluster-management-edge:agent-1", (f"{SUBJECT_PREFIX}edge",), False),
    )

    def approved(name: str, organizations: tuple[str, ...]) -> bool:
        return is_approved({CLUSTER_LABEL: "edge"}, subject=CertificateSubject(name, frozenset(organizations)))

    check_results(approved, rows)


def test_counts_are_added_up_and_the_last_decision_is_reported(store: InlineStore) -> None:
    put_rule(store, "a")
    cluster = {"metadata": {"name": "c1"}}
    first = rules.RuleDecision("a", RuleAction.ACCEPT, "c1", cluster)
    second = rules.RuleDecision("a", RuleAction.APPROVE, "c2", cluster)
    store.transact(approval_rules.count_decisions, [(first, NOW), (replace(first, rule="gone"), NOW)], "hub")
    store.transact(approval_rules.count_decisions, [(first, NOW), (second, NOW + timedelta(seconds=1))], "hub")
    stored = present(store.transact(lambda tx: tx.objects.get(APPROVAL_RULES, Key("", "a"))))
    status = stored.document["status"]
    assert (status["accepted"], status["approved"], status["matched"]) == (2, 1, 3)
    assert (status["lastMatched"], status["last"]["cluster"]) == ("2026-01-01T00:00:01Z", "c2")
    assert stored.document["metadata"]["generation"] == 1


def test_a_rule_that_another_release_wrote_and_this_cannot_read_holds_up_no_others_counts(store: InlineStore) -> None:
    put_rule(store, "a")
    foreign = {"metadata": {"name": "b", "uid": "u", "generation": 1}, "spec": {"decides": ["Accept"], "condition": "later("}}
    store.transact(writing.write, APPROVAL_RULES, foreign, None, OPERATOR)
    decided = [rules.RuleDecision(name, RuleAction.ACCEPT, "c1", {"metadata": {"name": "c1"}}) for name in ("a", "b")]
    store.transact(approval_rules.count_decisions, [(each, NOW) for each in decided], "hub")
    found = store.transact(lambda tx: [tx.objects.get(APPROVAL_RULES, Key("", name)) for name in ("a", "b")])
    assert [stored.document["status"]["accepted"] for stored in found if stored] == [1, 1]
    check_refusal(InvalidError, put_rule, store, "b", condition="later( ")
