"""Bootstrap credentials: what they allow and how they end; who may ask for which certificate: `make fuzz` tries a million."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import delete

from bench.csrs.attempts import FORGERIES
from bench.csrs.mutations import MUTATIONS
from bench.csrs.runs import run_cases
from hub.api import bootstrapcredentials as credential_rules, certificatesigningrequests as rules
from hub.api.bootstrapcredentials import FAILED, AttestationError, Attested, CredentialBounds, CredentialPhase, check, phase
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests import AddOnRequest, RequestPhase
from hub.api.managedclusters import cluster as clusters_rules
from hub.api.managedclusters.cluster import JoinRequest
from hub.api.managedclustersets import LABEL
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, REQUESTS
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.managedclusters import service as clusters
from hub.store import schema
from hub.store.tables.credentials import SqlCredentials
from machinery import pki
from machinery.errors import ForbiddenError, InvalidError, NotFoundError, TooManyRequestsError
from machinery.identity import AddOnName, AgentId, CertificateSubject, ClusterName, CredentialId, addon_subject, agent_subject
from machinery.meta import conditions
from machinery.meta.objects import Key, Query
from machinery.runtime.clock import ManualClock
from tests.checks import check_each, check_refusal, check_refusals, check_results, present, refusal
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import AGENT, EDGE, OPERATOR, Newcomer, change_cluster, fresh_newcomer
from tests.trials import soaked, trials
from tests.unit.hub.test_issuance import register_addon

NOW = ManualClock().now()
ANY = credential_rules.CredentialRecord(CredentialId("c1"), None, None, NOW, NOW + timedelta(hours=1), "ann")
ADDON = AddOnName("work")
SIGNER = "kubernetes.io/kube-apiserver-client"
PREFIX = "system:open-cluster-management:"
GROUPS = agent_subject(EDGE, AGENT).organizations
SEED = 20_261_122
CASES = trials(1500, 50_000)


def other(newcomer: Newcomer, name: str = "other", agent: str = "agent-1") -> Newcomer:
    return Newcomer(newcomer.store, cluster=ClusterName(name), agent=AgentId(agent), uid=f"uid-of-{name}")


def credential_of(requester: CertificateRecord) -> CredentialId:
    return present(requester.credential)


def uses(newcomer: Newcomer, requester: CertificateRecord) -> list[credential_rules.CredentialUse]:
    return list(newcomer.store.transact(lambda tx: tx.credentials.uses(credential_of(requester))))


def is_issued(newcomer: Newcomer, requester: CertificateRecord) -> bool:
    return newcomer.state(newcomer.issued(requester)).phase is RequestPhase.ISSUED


def labels(newcomer: Newcomer, name: str = "edge") -> dict[str, str]:
    stored = present(newcomer.store.transact(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", name))))
    return dict(doc.labels(stored.document))


def remove(newcomer: Newcomer) -> None:
    newcomer.store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, newcomer.cluster), OPERATOR))


def test_credential_allows_its_clusters_until_it_ends_and_says_why_it_does_not() -> None:
    for allowed in ({}, {"cluster": EDGE}, {"uses": 1}):
        check(replace(ANY, **allowed), EDGE, NOW)
    rows: tuple[tuple[dict[str, Any], str], ...] = (
        ({"revoked_at": NOW}, "revoked"),
        ({"expires_at": NOW}, "expired at 2026-01-01T00:00:00Z"),
        ({"cluster": ClusterName("other")}, 'for cluster "other"'),
        ({"cluster": ClusterName("edge1")}, 'for cluster "edge1"'),
    )
    check_refusals(ForbiddenError, lambda changed: check(replace(ANY, **changed), EDGE, NOW), rows)
    bounded = replace(ANY, bounds=CredentialBounds(patterns=("edge-*", "lab")))
    names = (("edge-1", True), ("edge-", True), ("xedge-1", False), ("edge", False), ("lab", True))
    check_results(lambda name: bounded.admits(ClusterName(name)), names)
    refused = [(name, r"names that match edge-\*, lab, and") for name, fits in names if not fits]
    check_refusals(ForbiddenError, lambda name: check(bounded, ClusterName(name), NOW), refused)
    phases: tuple[tuple[dict[str, Any], int, CredentialPhase], ...] = (
        *(({}, 7, CredentialPhase.ACTIVE), ({"uses": 2}, 1, CredentialPhase.ACTIVE)),
        *(({"uses": 2}, 2, CredentialPhase.USED_UP), ({"uses": 2, "revoked_at": NOW}, 2, CredentialPhase.REVOKED)),
        *(({"expires_at": NOW}, 0, CredentialPhase.EXPIRED), ({"expires_at": NOW, "uses": 1}, 1, CredentialPhase.USED_UP)),
    )
    check_results(lambda changed, issued: phase(replace(ANY, **changed), issued, NOW), phases)


def test_agent_spends_one_use_however_often_it_retries_or_renews_and_another_agent_another(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap(uses=1, cluster=EDGE)
    for _ in range(3):
        newcomer.join(requester)
        assert is_issued(newcomer, requester)
        newcomer.key = Newcomer(newcomer.store).key
    spent = newcomer.store.transact(lambda tx: tx.credentials.tally(credential_of(requester)))
    assert spent == credential_rules.UseCount(issued=1)
    (before,) = uses(newcomer, requester)
    mine = newcomer.certificate()
    newcomer.key = Newcomer(newcomer.store).key
    assert is_issued(newcomer, mine), "a renewal names the credential and spends no use"
    renewed = newcomer.certificate()
    assert (renewed.credential, renewed.serial != mine.serial) == (requester.credential, True)
    assert uses(newcomer, requester) == [before]
    second = other(newcomer, "edge", "agent-2")
    second.uid = newcomer.uid
    check_refusal(ForbiddenError, second.submit, requester, match="is used up: its only use was spent on other agents")
    check_refusal(ForbiddenError, second.join, requester, match="used up")


def test_denied_or_deleted_request_gives_its_use_back(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap(uses=2)
    denied, gone = [other(newcomer, f"c{number}").submit(requester) for number in range(2)]
    with pytest.raises(
        ForbiddenError, match="no use left: of 2, 0 are spent and 2 are held for agents that wait for a decision"
    ):
        newcomer.submit(requester)
    newcomer.deny(denied)
    assert newcomer.submit(requester)
    third = other(newcomer, "c3")
    check_refusal(ForbiddenError, third.submit, requester, match="no use left")
    newcomer.store.transact(lambda tx: requests.remove(tx, requests.find(tx, gone), OPERATOR))
    assert is_issued(third, requester)


def test_deleted_cluster_gives_back_what_its_name_held_but_not_what_it_spent(newcomer: Newcomer) -> None:
    requester, typo = newcomer.bootstrap(uses=1), other(newcomer, "typo")
    typo.join(requester)
    check_refusal(ForbiddenError, newcomer.join, requester, match="no use left")
    remove(typo)
    newcomer.join(requester)
    assert is_issued(newcomer, requester)
    remove(newcomer)
    check_refusal(ForbiddenError, typo.join, requester, match="used up")


def test_requests_of_before_uses_were_counted_are_not_signed_beyond_them(newcomer: Newcomer) -> None:
    """An earlier release counted names alone and took in two; the credential has one use."""
    requester = newcomer.bootstrap(uses=1, cluster=EDGE)
    second = Newcomer(newcomer.store, agent=AgentId("agent-2"))
    names = []
    for one in (newcomer, second):
        names.append(one.submit(requester))
        newcomer.store.execute(delete(schema.credential_uses))
        one.approve(names[-1])
    for name in names:
        newcomer.issue(name)
    states = [newcomer.state(name) for name in names]
    assert [state.phase for state in states] == [RequestPhase.ISSUED, RequestPhase.FAILED]
    assert "used up" in states[1].message


def test_while_uses_are_free_a_join_does_not_read_all_earlier_uses(newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch) -> None:
    requester, read = newcomer.bootstrap(uses=100), Mock(return_value=[])
    monkeypatch.setattr(SqlCredentials, "uses", read)
    newcomer.join(requester)
    assert is_issued(newcomer, requester)
    newcomer.store.transact(clusters.put, {"metadata": {"name": "by-hand"}, "spec": {}}, None, requester.user)  # OCM's agent
    assert not read.called


def entered(newcomer: Newcomer, **changed: Any) -> None:
    newcomer.store.transact(clusters.put, {"metadata": {"name": "edge", **changed}, "spec": {}}, None, OPERATOR)


def test_set_and_labels_are_given_once_whatever_the_cluster_asks_for(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap(bounds=CredentialBounds(cluster_set="shops", labels={"env": "prod"}))
    asked = {LABEL: "banks", "env": "dev", "mine": "1"}
    joining = JoinRequest(EDGE, newcomer.uid, newcomer.agent, labels=asked, credential=requester.credential)
    newcomer.store.transact(clusters.ensure, joining, requester.user)
    assert labels(newcomer) == {LABEL: "shops", "env": "prod", "mine": "1"}
    changed = {LABEL: "shops", "env": "test"}
    change_cluster(newcomer.store, lambda old: doc.with_metadata(old, labels=changed))
    newcomer.join(requester)
    assert labels(newcomer) == changed, "an operator may change them"


def test_cluster_entered_by_hand_gets_the_set_and_the_labels(newcomer: Newcomer) -> None:
    entered(newcomer, labels={"env": "dev", "floor": "2"})
    newcomer.join(newcomer.bootstrap(bounds=CredentialBounds(cluster_set="shops", labels={"env": "prod"})))
    assert labels(newcomer) == {LABEL: "shops", "env": "prod", "floor": "2"}


def test_credential_of_a_set_reaches_no_cluster_of_another() -> None:
    def check(**changed: Any) -> None:
        newcomer = fresh_newcomer()
        entered(newcomer, **changed)
        requester = newcomer.bootstrap(bounds=CredentialBounds(cluster_set="shops"))
        for act in (newcomer.join, newcomer.submit):
            check_refusal(ForbiddenError, act, requester, match='of the set "shops", and cluster "edge" ')

    known = {clusters_rules.CLUSTER_UID: "uid-1"}
    check(labels={LABEL: "banks"})
    check(annotations=known)
    check(labels={LABEL: "default"}, annotations=known)


def test_revocation_is_recorded_once_and_denies_pending_requests_and_later_ones(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap()
    waiting = newcomer.submit(requester)
    record = newcomer.store.transact(credentials.revoke, credential_of(requester), OPERATOR, "leaked")
    assert (record.revoked_by, record.revoked_reason, record.revoked_at is not None) == (OPERATOR, "leaked", True)
    state = newcomer.state(waiting)
    assert (state.phase, state.reason) == (RequestPhase.DENIED, "CredentialRevoked")
    assert newcomer.store.transact(credentials.revoke, credential_of(requester), "bob", "twice") == record
    certificate = present(newcomer.store.transact(lambda tx: tx.certificates.by_serial(requester.serial)))
    assert certificate.revoked_reason == "CredentialRevoked"
    for act in (newcomer.join, newcomer.submit):
        check_refusal(ForbiddenError, act, requester, match="revoked")
    with pytest.raises(NotFoundError, match='bootstrap credential "nobody" not found'):
        newcomer.store.transact(credentials.revoke, CredentialId("nobody"))


def test_ended_credentials_are_forgotten_after_a_while(newcomer: Newcomer, clock: ManualClock) -> None:
    requester, current = newcomer.bootstrap(), newcomer.bootstrap(lifetime=timedelta(days=3))
    newcomer.issued(requester)
    clock.advance(timedelta(days=1))
    assert newcomer.store.transact(lambda tx: tx.credentials.forget_ended(tx.now - timedelta(days=1))) == 0
    clock.advance(timedelta(hours=1, seconds=1))
    assert newcomer.store.transact(lambda tx: tx.credentials.forget_ended(tx.now - timedelta(days=1))) == 1
    assert newcomer.store.transact(lambda tx: [record.id for record in tx.credentials.all()]) == [current.credential]
    assert newcomer.certificate().credential == requester.credential, "certificates keep their origin"


PROVEN = Attested("https://edge", "system:serviceaccount:agents:spoke", "k1")


def enter(newcomer: Newcomer, requester: CertificateRecord, proven: Attested | None) -> None:
    joining = JoinRequest(newcomer.cluster, newcomer.uid, newcomer.agent, credential=requester.credential, attested=proven)
    newcomer.store.transact(clusters.ensure, joining, requester.user)
    newcomer.submit(requester, attested=proven)


def test_name_is_bound_to_the_issuer_that_its_cluster_came_from(newcomer: Newcomer, clock: ManualClock) -> None:
    demanding = newcomer.bootstrap(bounds=CredentialBounds(attestation=credential_rules.AttestationRequirement("https://edge")))
    caught = present(refusal(AttestationError, enter, newcomer, demanding, None))
    assert "requires an attestation, and there is none" in caught.why
    enter(newcomer, demanding, PROVEN)
    bound = newcomer.store.transact(lambda tx: tx.bindings.of(EDGE))
    assert bound == credential_rules.Binding(EDGE, PROVEN.issuer, PROVEN.subject, PROVEN.key, clock.now())
    condition = conditions.find(doc.conditions(newcomer.store.transact(clusters.find, EDGE).document), "ManagedClusterAttested")
    assert condition is not None
    assert (condition.status, "of the issuer https://edge" in condition.message) == ("True", True)
    enter(newcomer, demanding, PROVEN)

    def check(proven: Attested | None, why: str) -> None:
        """A credential without a demand, and a token at the other door, are no way around the binding."""
        free = newcomer.bootstrap()
        caught = present(refusal(AttestationError, enter, newcomer, free, proven))
        assert (why in caught.why, caught.message) == (True, FAILED), caught.why
        check_refusal(AttestationError, newcomer.submit, free, attested=proven)

    rows = (
        (None, 'cluster "edge" is bound to issuer https://edge, and there is no attestation'),
        (replace(PROVEN, issuer="https://other"), "of https://other"),
        (replace(PROVEN, subject="system:serviceaccount:agents:other"), "system:serviceaccount:agents:other"),
        (
            replace(PROVEN, key="k2", pinned=frozenset(("k2",))),
            "a key of issuer https://edge that is not among its configured keys",
        ),
    )
    check_each(check, rows)
    enter(newcomer, newcomer.bootstrap(), replace(PROVEN, key="k2", pinned=frozenset(("k1", "k2"))))


def test_name_is_free_again_after_its_cluster_is_deleted(newcomer: Newcomer, store: InlineStore) -> None:
    joining = JoinRequest(EDGE, newcomer.uid, newcomer.agent, credential=newcomer.bootstrap().credential, attested=PROVEN)
    store.transact(clusters.ensure, joining, "agent")
    remove(newcomer)
    enter(newcomer, newcomer.bootstrap(), None)


def test_request_is_stored_as_kubernetes_has_it(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap()
    name = newcomer.submit(requester, requested_duration=timedelta(hours=2))
    document = newcomer.stored(name).document
    assert name.startswith("edge-")
    assert (len(name), document["apiVersion"]) == (len("edge-12345"), "certificates.k8s.io/v1")
    assert document["metadata"]["labels"] == {"open-cluster-management.io/cluster-name": "edge"}
    assert document["metadata"]["generateName"] == "edge-"
    spec = dict(document["spec"])
    assert pki.parse_request(rules.pem(document)).public_key == pki.public_key_of(newcomer.key)
    del spec["request"]
    assert spec == {
        "signerName": SIGNER,
        "usages": ["digital signature", "key encipherment", "client auth"],
        "username": requester.user,
        "groups": ["system:bootstrappers:managedcluster", "system:authenticated"],
        "extra": {"hub.open-cluster-management.io/certificate-serial": [f"{requester.serial:x}"]},
        "expirationSeconds": 7200,
    }
    forever = newcomer.submit(requester, request=newcomer.request(key=pki.generate_key()), requested_duration=timedelta(99_999))
    assert newcomer.stored(forever).document["spec"]["expirationSeconds"] == 2**31 - 1, "int32 in Go"


def test_same_requester_with_the_same_bytes_finds_the_same_request(newcomer: Newcomer, store: InlineStore) -> None:
    requester, request = newcomer.bootstrap(uses=1), newcomer.request()
    name = newcomer.submit(requester, request=request)
    assert newcomer.submit(requester, request=request) == name
    newcomer.join(requester)
    assert store.state.admissions[credential_of(requester)] == {"edge"}, "a retry spends no use"
    newcomer.approve(name)
    newcomer.issue(name)
    assert newcomer.submit(requester, request=request) == name
    assert newcomer.submit(requester, request=newcomer.request()) != name
    assert newcomer.submit(newcomer.bootstrap(), request=request) != name


def test_subject_must_be_exactly_the_agents(newcomer: Newcomer) -> None:
    subjects = (
        CertificateSubject(f"{PREFIX}other:agent-1", GROUPS),
        CertificateSubject(f"{PREFIX}edge1:agent-1", GROUPS),
        CertificateSubject(f"{PREFIX}edge:agent-2", GROUPS),
        CertificateSubject(f"{PREFIX}edge:agent-1:x", GROUPS),
        CertificateSubject(f"{PREFIX}edge", GROUPS),
        CertificateSubject(f"{PREFIX}edge:agent-1", frozenset(("system:masters",))),
        CertificateSubject(f"{PREFIX}edge:agent-1"),
        CertificateSubject(f"{PREFIX}edge:agent-1", GROUPS | {"system:masters"}),
        CertificateSubject(f"{PREFIX}edge:agent-1", GROUPS, frozenset(("unit",))),
    )
    submit = lambda subject: newcomer.submit(newcomer.bootstrap(), request=newcomer.request(subject))  # noqa: E731 - one line
    check_refusals(InvalidError, submit, [(subject, "subject") for subject in subjects])
    named = pki.build_request(agent_subject(EDGE, AGENT), newcomer.key, ("hub.example.com",))
    check_refusal(InvalidError, newcomer.submit, newcomer.bootstrap(), request=named)
    assert newcomer.store.transact(lambda tx: tx.objects.find(REQUESTS, Query())).items == ()


def test_agent_renews_only_itself_and_only_while_its_certificate_is_valid(newcomer: Newcomer, clock: ManualClock) -> None:
    certificate = newcomer.registered()
    assert newcomer.submit(certificate, request=newcomer.request(key=pki.generate_key()))
    for cluster, agent in (("other", "agent-1"), ("edge", "agent-2"), ("edge1", "agent-1")):
        other = Newcomer(newcomer.store, cluster=ClusterName(cluster), agent=AgentId(agent))
        check_refusal(ForbiddenError, other.submit, certificate, match="but agent .* sent it")
    check_refusal(ForbiddenError, newcomer.submit, newcomer.certificate(Purpose.RECOVERY), match="purpose recovery")
    clock.advance(timedelta(days=31))
    check_refusal(ForbiddenError, newcomer.submit, certificate, match="not valid now")


def test_key_of_another_cluster_or_of_a_revoked_certificate_is_refused(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()
    thief = Newcomer(newcomer.store, cluster=ClusterName("thief"), uid="uid-2", key=newcomer.key)
    check_refusal(ForbiddenError, thief.submit, thief.bootstrap(), match="already used by another")
    newcomer.store.transact(lambda tx: tx.certificates.revoke([certificate.serial], tx.now, "Stolen"))
    check_refusal(ForbiddenError, newcomer.submit, newcomer.bootstrap(), match="revoked certificate")


def test_flood_of_undecided_requests_is_stopped(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap()
    for _ in range(20):
        newcomer.submit(requester)
    with pytest.raises(TooManyRequestsError, match="20 certificate requests") as refused:
        newcomer.submit(requester)
    assert refused.value.retry_after == timedelta(minutes=1)
    other = Newcomer(newcomer.store, cluster=ClusterName("other"))
    other.submit(other.bootstrap())


def test_addon_certificate_needs_a_registration_with_that_subject(newcomer: Newcomer) -> None:
    certificate, asked = newcomer.registered(), AddOnRequest(ADDON, SIGNER)
    key = pki.generate_key()
    request = pki.build_request(addon_subject(EDGE, ADDON, ADDON), key, ("work.addon.open-cluster-management.io",))
    check_refusal(ForbiddenError, newcomer.submit, certificate, addon=asked, request=request, match="no registration")
    newcomer.store.transact(register_addon)
    with pytest.raises(ForbiddenError, match="no registration"):
        newcomer.submit(certificate, addon=AddOnRequest(ADDON, "example.com/other"), request=request)
    with pytest.raises(InvalidError, match="subject"):
        newcomer.submit(certificate, addon=asked, request=pki.build_request(CertificateSubject("system:admin"), key))
    with pytest.raises(ForbiddenError, match="purpose bootstrap"):
        newcomer.submit(newcomer.bootstrap(), addon=asked, request=request)
    name = newcomer.submit(certificate, addon=asked, request=request)
    assert name.startswith("addon-edge-work-")
    assert newcomer.stored(name).document["metadata"]["labels"] == {
        "open-cluster-management.io/cluster-name": "edge",
        "open-cluster-management.io/addon-name": "work",
    }
    assert newcomer.review(name) is not None
    newcomer.issue(name)
    record = newcomer.certificate(Purpose.ADDON)
    assert (record.cluster, record.addon, record.agent) == (EDGE, "work", None)
    assert record.user == "system:open-cluster-management:cluster:edge:addon:work:agent:work"
    assert newcomer.issuer.issued[-1][0].dns_names == ("work.addon.open-cluster-management.io",)


@soaked(CASES)
@pytest.mark.timeout(600)
def test_no_mutated_request_crashes_or_is_signed_against_the_policy(record_property: Callable[[str, object], None]) -> None:
    record_property("seed", SEED)
    total = run_cases(SEED, 0, CASES)
    assert (total.findings, total.cases) == ([], CASES)
    assert set(total.mutations) == {"none", *(mutation.__name__ for mutation in (*MUTATIONS, *FORGERIES))}, "each was tried"
    for outcome in ("Issued", "InvalidError", "ForbiddenError", "Failed", "TooLargeError"):
        assert total.outcomes[outcome] > CASES / 100, total.outcomes
