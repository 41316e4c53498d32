"""Approving without a human, and signing: once per request, with every field from the records."""

from base64 import b64encode
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from hub.domain import request as rules
from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.change import ADDONS, REQUESTS, Key
from hub.domain.credential import CredentialRecord
from hub.domain.request import AddOnRequest, Requester, RequestPhase
from hub.domain.request_end import Ends
from hub.ports import Transaction
from hub.services import addons, clusters, credentials, request_objects, requests
from hub.services.credentials import Terms, create_token
from machinery import pki
from machinery.clock import ManualClock
from machinery.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError, TooManyRequestsError, UnavailableError
from machinery.identity import (
    ALL_CLUSTERS_GROUP,
    AddOnName,
    AgentId,
    ClusterName,
    Subject,
    addon_subject,
    agent_subject,
    bootstrap_user,
)
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import AGENT, EDGE, OPERATOR, Newcomer

SIGNER = "kubernetes.io/kube-apiserver-client"
USAGES = ["digital signature", "key encipherment", "client auth"]
CN = "system:open-cluster-management:edge:agent-1"
GROUP = "system:open-cluster-management:edge"


def records(newcomer: Newcomer, name: str) -> dict[Purpose, CertificateRecord]:
    uid = newcomer.stored(name).uid
    found = newcomer.store.transact(lambda tx: tx.certificates.of_request(uid))
    return {record.purpose: record for record in found}


def test_certificate_comes_from_the_records_and_has_its_own(newcomer: Newcomer, clock: ManualClock) -> None:
    requester = newcomer.bootstrap()
    name = newcomer.submit(requester)
    newcomer.approve(name)
    newcomer.issue(name)
    key_hash = pki.key_hash(pki.public_key_of(newcomer.key))
    now, backdated = clock.now(), clock.now() - timedelta(minutes=5)
    issued = records(newcomer, name)
    agent, recovery = issued[Purpose.AGENT], issued[Purpose.RECOVERY]
    assert len(issued) == 2
    assert (agent.user, set(agent.groups)) == (CN, {GROUP, ALL_CLUSTERS_GROUP})
    assert (agent.cluster, agent.agent, agent.credential) == (EDGE, AGENT, requester.credential)
    assert (agent.not_before, agent.not_after) == (backdated, now + timedelta(days=30))
    assert (recovery.user, recovery.groups) == ("system:recovery:edge:agent-1", ())
    assert (recovery.not_before, recovery.not_after) == (backdated, now + timedelta(days=90))
    assert agent.key_hash == recovery.key_hash == key_hash
    assert agent.serial != recovery.serial
    assert [serial for _, serial in newcomer.issuer.issued[-2:]] == [agent.serial, recovery.serial]


def test_issued_request_tells_both_chains(newcomer: Newcomer) -> None:
    name = newcomer.submit(newcomer.bootstrap())
    newcomer.approve(name)
    newcomer.issue(name)
    state = newcomer.store.transact(requests.state, name)
    assert state.phase is RequestPhase.ISSUED
    assert state.is_final
    assert state.certificate == f"agent {CN}\n".encode()
    assert state.recovery_certificate == b"recovery system:recovery:edge:agent-1\n"
    assert newcomer.stored(name).document["status"]["certificate"] == b64encode(state.certificate).decode()


def test_second_call_issues_nothing(newcomer: Newcomer) -> None:
    name = newcomer.submit(newcomer.bootstrap())
    newcomer.approve(name)
    assert newcomer.issue(name) is not None
    count = len(newcomer.issuer.issued)
    assert newcomer.issue(name) is None
    assert len(newcomer.issuer.issued) == count


def test_nothing_is_signed_before_approval_or_after_denial(newcomer: Newcomer) -> None:
    pending = newcomer.submit(newcomer.bootstrap())
    assert newcomer.issue(pending) is None
    decide(newcomer, pending, approve=False)
    assert newcomer.issue(pending) is None
    assert records(newcomer, pending) == {}


def test_signature_that_fails_leaves_no_record(newcomer: Newcomer) -> None:
    name = newcomer.submit(newcomer.bootstrap())
    newcomer.approve(name)
    newcomer.issuer.failure = UnavailableError("the CA is away")
    with pytest.raises(UnavailableError):
        newcomer.issue(name)
    assert records(newcomer, name) == {}
    newcomer.issuer.failure = None
    assert newcomer.issue(name) is not None


@pytest.mark.parametrize(
    ("asked", "granted"),
    [(None, 720), (timedelta(hours=2), 2), (timedelta(days=365), 720), (timedelta(seconds=1), 1 / 6)],
)
def test_requester_may_shorten_the_lifetime_only(newcomer: Newcomer, asked: timedelta | None, granted: float) -> None:
    name = newcomer.submit(newcomer.bootstrap(), requested_duration=asked)
    newcomer.approve(name)
    newcomer.issue(name)
    record = records(newcomer, name)[Purpose.AGENT]
    assert record.not_after - record.issued_at == timedelta(hours=granted)


def test_credential_revoked_since_makes_the_request_fail(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap()
    name = newcomer.submit(requester)
    newcomer.approve(name)
    assert requester.credential is not None
    newcomer.store.transact(credentials.revoke, requester.credential)
    newcomer.issue(name)
    state = newcomer.store.transact(requests.state, name)
    assert (state.phase, state.reason) == (RequestPhase.FAILED, "SignerValidationFailure")
    assert "revoked" in state.message
    assert records(newcomer, name) == {}


def decide(newcomer: Newcomer, name: str, *, approve: bool) -> object:
    return newcomer.store.transact(
        lambda tx: requests.decide(tx, name, approve=approve, reason="R", message="m", actor=OPERATOR)
    )


def test_decision_is_taken_once(newcomer: Newcomer, clock: ManualClock) -> None:
    name = newcomer.submit(newcomer.bootstrap())
    decide(newcomer, name, approve=True)
    before = newcomer.stored(name)
    clock.advance(timedelta(hours=1))
    decide(newcomer, name, approve=True)
    assert newcomer.stored(name) == before
    with pytest.raises(ConflictError, match="already approved"):
        decide(newcomer, name, approve=False)


def test_denied_request_tells_why(newcomer: Newcomer) -> None:
    name = newcomer.submit(newcomer.bootstrap())
    decide(newcomer, name, approve=False)
    state = newcomer.store.transact(requests.state, name)
    assert (state.phase, state.reason, state.message, state.is_final) == (RequestPhase.DENIED, "R", "m", True)
    with pytest.raises(ConflictError, match="already denied"):
        decide(newcomer, name, approve=True)


def test_request_that_is_not_there_is_said_so(newcomer: Newcomer) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        newcomer.store.transact(requests.state, "nobody")


# Approval without a human.


@pytest.mark.parametrize(
    ("globs", "approved"),
    [((), False), (("edge",), True), (("ed*",), True), (("Edge",), False), (("dge",), False), (("x", "*"), True)],
)
def test_rule_approves_names_that_match(newcomer: Newcomer, globs: tuple[str, ...], approved: bool) -> None:  # noqa: FBT001 - a table's column
    name = newcomer.submit(newcomer.bootstrap())
    newcomer.review(name, *globs)
    phase = newcomer.store.transact(requests.state, name).phase
    assert phase is (RequestPhase.APPROVED if approved else RequestPhase.PENDING)


def test_rule_approves_once_and_not_what_was_denied(newcomer: Newcomer) -> None:
    name = newcomer.submit(newcomer.bootstrap())
    decide(newcomer, name, approve=False)
    assert newcomer.review(name, "*") is None
    other = newcomer.submit(newcomer.bootstrap())
    assert newcomer.review(other, "*") is not None
    assert newcomer.review(other, "*") is None


def test_renewal_of_an_accepted_cluster_needs_no_human(newcomer: Newcomer) -> None:
    name = newcomer.submit(newcomer.registered(), request=newcomer.request(key=pki.generate_key()))
    assert newcomer.review(name) is not None
    state = newcomer.store.transact(requests.state, name)
    assert state.reason == "AutoApprovedByHubCSRApprovingController"
    assert newcomer.issue(name) is not None


def test_renewal_waits_for_a_human_when_the_cluster_is_denied(newcomer: Newcomer) -> None:
    name = newcomer.submit(newcomer.registered(), request=newcomer.request(key=pki.generate_key()))
    newcomer.accept(accepted=False)
    assert newcomer.review(name, "*") is None


def test_renewal_is_not_approved_after_its_certificate_was_revoked(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()
    name = newcomer.submit(certificate, request=newcomer.request(key=pki.generate_key()))
    newcomer.store.transact(lambda tx: tx.certificates.revoke([certificate.serial], tx.now, "Stolen"))
    assert newcomer.review(name, "*") is None


def test_renewal_of_an_agent_that_another_took_the_place_of_waits_for_a_human(newcomer: Newcomer, clock: ManualClock) -> None:
    """Two agents with one cluster name: the one that came last is the cluster's own."""
    certificate = newcomer.registered()
    clock.advance(timedelta(seconds=1))
    other = Newcomer(newcomer.store, agent=AgentId("agent-2"))
    successor = other.registered()
    name = newcomer.submit(certificate, request=newcomer.request(key=pki.generate_key()))
    assert newcomer.review(name, "*") is None
    name = other.submit(successor, request=other.request(key=pki.generate_key()))
    assert other.review(name) is not None


def test_a_superseded_agent_renews_again_when_its_successor_is_revoked(newcomer: Newcomer, clock: ManualClock) -> None:
    certificate = newcomer.registered()
    clock.advance(timedelta(seconds=1))
    successor = Newcomer(newcomer.store, agent=AgentId("agent-2")).registered()
    name = newcomer.submit(certificate, request=newcomer.request(key=pki.generate_key()))
    newcomer.store.transact(lambda tx: tx.certificates.revoke([successor.serial], tx.now, "Stolen"))
    assert newcomer.review(name) is not None


def test_renewal_is_not_approved_after_the_cluster_is_gone(newcomer: Newcomer) -> None:
    name = newcomer.submit(newcomer.registered(), request=newcomer.request(key=pki.generate_key()))
    newcomer.store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE), OPERATOR))
    assert newcomer.review(name, "*") is None


@pytest.mark.parametrize(("cluster", "agent"), [("edge", "agent-2"), ("other", "agent-1")])
def test_request_that_is_not_its_requesters_own_waits_for_a_human(newcomer: Newcomer, cluster: str, agent: str) -> None:
    """Even if one slipped in: what was checked at submission is checked again."""
    certificate = newcomer.registered()
    other = Newcomer(newcomer.store, cluster=ClusterName(cluster), agent=AgentId(agent))
    if cluster == "other":
        other.join(other.bootstrap())
        other.accept()
    forged = rules.submitted_document(other.submission(certificate), "forged")
    newcomer.store.transact(request_objects.write, forged, None, "forger")
    assert newcomer.review("forged", "*") is None


def test_addon_request_of_another_cluster_waits_for_a_human(newcomer: Newcomer) -> None:
    other = Newcomer(newcomer.store, cluster=ClusterName("other"), uid="uid-2")
    newcomer.registered()
    newcomer.store.transact(_register_addon)
    subject = addon_subject(EDGE, AddOnName("work"), "work")
    asked = AddOnRequest(AddOnName("work"), SIGNER)
    request = pki.build_request(subject, pki.generate_key())
    forged = newcomer.submission(other.registered(), addon=asked, request=request)
    newcomer.store.transact(request_objects.write, rules.submitted_document(forged, "forged"), None, "forger")
    assert newcomer.review("forged", "*") is None


@pytest.mark.parametrize(("asker", "target"), [("edge", "edge1"), ("edge1", "edge")])
def test_addon_request_of_a_cluster_with_the_same_prefix_is_never_signed(store: MemoryStore, asker: str, target: str) -> None:
    """One cluster's name is another's with more behind it, either way round."""
    own, others = (Newcomer(store, cluster=ClusterName(name), uid=f"uid-{name}") for name in (asker, target))
    own_certificate, others_certificate = own.registered(), others.registered()
    store.transact(_register_addon, target)
    subject = addon_subject(others.cluster, AddOnName("work"), "work")
    asked = AddOnRequest(AddOnName("work"), SIGNER)
    for name, certificate in (("forged", own_certificate), ("own", others_certificate)):
        request = pki.build_request(subject, pki.generate_key())
        submitted = others.submission(certificate, addon=asked, request=request)
        store.transact(request_objects.write, rules.submitted_document(submitted, name), None, "whoever")
    assert own.review("own", "*") is not None, "whose add-on it is gets it"
    assert own.review("forged", "*") is None
    own.approve("forged")
    own.issue("forged")
    state = store.transact(requests.state, "forged")
    assert state.phase is RequestPhase.FAILED, "whoever approved it"
    assert f'came with a certificate of cluster "{asker}" and asks for one of cluster "{target}"' in state.message


def _register_addon(tx: Transaction, cluster: str = "edge", /, **subject: Any) -> None:
    registration = {"type": "kubeClient", "kubeClient": {"driver": "csr", "subject": subject}}
    document = {"metadata": {"name": "work", "namespace": cluster}, "status": {"registrations": [registration]}}
    addons.put(tx, document, tx.objects.get(ADDONS, Key(cluster, "work")), OPERATOR)


def _addon_request(newcomer: Newcomer, certificate: CertificateRecord) -> str:
    subject = addon_subject(EDGE, AddOnName("work"), "work")
    request = pki.build_request(subject, pki.generate_key(), ("work.addon.open-cluster-management.io",))
    return newcomer.submit(certificate, addon=AddOnRequest(AddOnName("work"), SIGNER), request=request)


def test_addon_certificate_is_its_registrations(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()
    newcomer.store.transact(_register_addon)
    name = _addon_request(newcomer, certificate)
    assert newcomer.review(name) is not None
    newcomer.issue(name)
    issued = records(newcomer, name)
    assert set(issued) == {Purpose.ADDON}
    record = issued[Purpose.ADDON]
    assert (record.cluster, record.addon, record.agent) == (EDGE, "work", None)
    assert record.user == "system:open-cluster-management:cluster:edge:addon:work:agent:work"
    assert newcomer.issuer.issued[-1][0].dns_names == ("work.addon.open-cluster-management.io",)


def test_addon_of_a_superseded_agent_waits_for_a_human(newcomer: Newcomer, clock: ManualClock) -> None:
    certificate = newcomer.registered()
    newcomer.store.transact(_register_addon)
    name = _addon_request(newcomer, certificate)
    clock.advance(timedelta(seconds=1))
    Newcomer(newcomer.store, agent=AgentId("agent-2")).registered()
    assert newcomer.review(name, "*") is None


@pytest.mark.parametrize(
    "subject",
    [
        {"user": "ann", "groups": ["system:masters"]},
        {"user": "ann", "groups": ["system:open-cluster-management:other"]},
        {"user": "system:open-cluster-management:other:agent-1", "groups": ["g"]},
    ],
)
def test_addon_that_is_registered_under_anothers_name_waits_for_a_human(newcomer: Newcomer, subject: dict[str, Any]) -> None:
    certificate = newcomer.registered()
    newcomer.store.transact(lambda tx: _register_addon(tx, **subject))
    asked = AddOnRequest(AddOnName("work"), SIGNER)
    request = pki.build_request(Subject(subject["user"], frozenset(subject["groups"])), pki.generate_key())
    assert newcomer.review(newcomer.submit(certificate, addon=asked, request=request), "*") is None

    newcomer.approve(name := newcomer.submit(certificate, addon=asked, request=request))
    newcomer.issue(name)
    state = newcomer.store.transact(requests.state, name)
    assert (state.phase, "not an add-on's to have" in state.message) == (RequestPhase.FAILED, True), "whoever approved it"


def test_addon_that_is_being_deleted_gets_no_certificate(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()
    newcomer.store.transact(_register_addon)
    name = _addon_request(newcomer, certificate)
    newcomer.store.transact(_begin_deletion)
    assert newcomer.review(name, "*") is None
    newcomer.approve(name)
    newcomer.issue(name)
    state = newcomer.store.transact(requests.state, name)
    assert (state.phase, "is being deleted" in state.message) == (RequestPhase.FAILED, True)
    with pytest.raises(ForbiddenError, match="is being deleted"):
        _addon_request(newcomer, certificate)


def _begin_deletion(tx: Transaction) -> None:
    stored = addons.find(tx, EDGE, AddOnName("work"))
    held = {**stored.document, "metadata": {**stored.document["metadata"], "finalizers": ["example.com/wait"]}}
    addons.put(tx, held, stored, OPERATOR)
    addons.remove(tx, addons.find(tx, EDGE, AddOnName("work")), OPERATOR)


def test_addon_with_a_signer_of_its_own_is_left_to_that_signer(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()
    signer = "example.com/signer"
    registration = {"type": "customSigner", "customSigner": {"signerName": signer, "subject": {"user": "u"}}}
    document = {"metadata": {"name": "work", "namespace": "edge"}, "status": {"registrations": [registration]}}
    newcomer.store.transact(addons.put, document, None, OPERATOR)
    request = pki.build_request(Subject("u"), pki.generate_key())
    name = newcomer.submit(certificate, addon=AddOnRequest(AddOnName("work"), signer), request=request)
    assert newcomer.review(name, "*") is None
    newcomer.approve(name)
    assert newcomer.issue(name) is None
    assert newcomer.store.transact(requests.state, name).phase is RequestPhase.APPROVED


@pytest.mark.parametrize("changed", [{"user": "somebody-else"}, {"groups": ["another"]}, {"organizationUnits": ["another"]}])
def test_addon_whose_registration_changed_gets_nothing(newcomer: Newcomer, changed: dict[str, Any]) -> None:
    certificate = newcomer.registered()
    newcomer.store.transact(_register_addon)
    name = _addon_request(newcomer, certificate)
    newcomer.store.transact(lambda tx: _register_addon(tx, **changed))
    assert newcomer.review(name, "*") is None
    newcomer.approve(name)
    newcomer.issue(name)
    assert newcomer.store.transact(requests.state, name).phase is RequestPhase.FAILED


# Requests through the Kubernetes API.


def _posted(newcomer: Newcomer, subject: Subject, spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
    request = b64encode(newcomer.request(subject)).decode()
    return {
        "metadata": {"name": "gc1", "labels": {rules.CLUSTER_LABEL: subject.common_name.split(":")[-2]}},
        "spec": {"request": request, "signerName": SIGNER, "usages": USAGES, **(spec or {})},
        "status": {"certificate": "forged"},
    }


def post(newcomer: Newcomer, document: dict[str, Any]) -> object:
    return newcomer.store.transact(requests.put, document, None, Requester(OPERATOR, ("system:masters",), "u1"))


def test_posted_request_bears_the_requesters_names_whatever_it_claims(newcomer: Newcomer) -> None:
    extra = {"hub.open-cluster-management.io/certificate-serial": ["1"]}
    claims = {"username": "admin", "groups": ["x"], "uid": "y", "extra": extra}
    post(newcomer, _posted(newcomer, agent_subject(EDGE, AGENT), claims))
    document = newcomer.stored("gc1").document
    spec = document["spec"]
    assert (spec["username"], spec["groups"], spec["uid"]) == (OPERATOR, ["system:masters"], "u1")
    assert "extra" not in spec
    assert document["status"] == {}


def token_of(newcomer: Newcomer, cluster: ClusterName | None = EDGE) -> CredentialRecord:
    """A bootstrap credential that is a token."""
    return newcomer.store.transact(create_token, Terms(cluster, 1, timedelta(hours=1)), OPERATOR)[0]


def post_with_token(newcomer: Newcomer, record: CredentialRecord, cluster: ClusterName = EDGE) -> None:
    requester = Requester(bootstrap_user(record.id), (), extra={"example.com/a": ("b",)})
    newcomer.store.transact(requests.put, _posted(newcomer, agent_subject(cluster, AGENT)), None, requester)


def test_request_posted_with_a_token_is_approved_by_rule_and_signed(newcomer: Newcomer) -> None:
    record = token_of(newcomer)
    post_with_token(newcomer, record)
    assert newcomer.review("gc1", "other*") is None
    assert newcomer.review("gc1", "edge*") is not None
    newcomer.issue("gc1")
    assert newcomer.certificate().credential == record.id
    assert newcomer.stored("gc1").document["spec"]["extra"] == {"example.com/a": ["b"]}
    assert newcomer.store.transact(lambda tx: tx.credentials.admitted(record.id)) == {EDGE}


@pytest.mark.parametrize("labelled", [True, False])
def test_a_cluster_has_few_requests_that_wait_at_the_operators_door_too(newcomer: Newcomer, *, labelled: bool) -> None:
    """A request that is decided makes room; an operator is not counted."""
    record = token_of(newcomer)
    requester = Requester(bootstrap_user(record.id), ())

    def post_one(name: str) -> None:
        document = _posted(newcomer, agent_subject(EDGE, AGENT))
        document["metadata"] = {"name": name, **({"labels": {rules.CLUSTER_LABEL: "edge"}} if labelled else {})}
        newcomer.store.transact(requests.put, document, None, requester)

    for number in range(rules.MAX_PENDING):
        post_one(f"csr-{number}")
    with pytest.raises(TooManyRequestsError, match="wait for a decision"):
        post_one("one-more")
    post(newcomer, {**_posted(newcomer, agent_subject(EDGE, AGENT)), "metadata": {"name": "operators"}})
    decide(newcomer, "csr-0", approve=False)
    post_one("one-more")


def test_token_for_another_cluster_posts_nothing(newcomer: Newcomer) -> None:
    with pytest.raises(ForbiddenError, match='is for cluster "other", not for "edge"'):
        post_with_token(newcomer, token_of(newcomer, ClusterName("other")))
    assert newcomer.store.transact(lambda tx: tx.objects.get(REQUESTS, Key("", "gc1"))) is None


def test_token_that_is_revoked_before_the_decision_gets_no_certificate(newcomer: Newcomer) -> None:
    record = token_of(newcomer)
    post_with_token(newcomer, record)
    newcomer.store.transact(credentials.revoke, record.id)
    assert newcomer.review("gc1", "edge*") is None
    assert newcomer.issue("gc1") is None
    state = newcomer.store.transact(requests.state, "gc1")
    assert (state.phase, state.reason) == (RequestPhase.DENIED, "CredentialRevoked")


def test_signing_itself_looks_at_the_cluster_that_a_token_is_for(newcomer: Newcomer) -> None:
    record = token_of(newcomer, ClusterName("other"))
    posted = _posted(newcomer, agent_subject(EDGE, AGENT), {"username": bootstrap_user(record.id), "groups": []})
    document = {**posted, "apiVersion": rules.API_VERSION, "kind": rules.KIND, "status": {}}
    newcomer.store.transact(request_objects.write, document, None, "test")
    newcomer.approve("gc1")
    newcomer.issue("gc1")
    assert newcomer.store.transact(requests.state, "gc1").phase is RequestPhase.FAILED


def test_renewal_posted_with_a_certificate_is_approved_while_the_cluster_is_accepted(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()
    requester = Requester(certificate.user, certificate.groups, extra={rules.SERIAL_EXTRA: (f"{certificate.serial:x}",)})
    newcomer.store.transact(requests.put, _posted(newcomer, agent_subject(EDGE, AGENT)), None, requester)
    newcomer.accept(accepted=False)
    assert newcomer.review("gc1") is None
    newcomer.accept()
    assert newcomer.review("gc1") is not None


def test_posted_request_without_the_common_group_is_signed_with_it(newcomer: Newcomer) -> None:
    post(newcomer, _posted(newcomer, Subject(CN, frozenset((GROUP,)))))
    newcomer.approve("gc1")
    newcomer.issue("gc1")
    assert set(records(newcomer, "gc1")[Purpose.AGENT].groups) == {GROUP, ALL_CLUSTERS_GROUP}


@pytest.mark.parametrize(
    "subject",
    [
        Subject("system:admin", frozenset(("system:masters",))),
        Subject(CN, frozenset(("system:masters", GROUP))),
        Subject(CN, frozenset(("system:open-cluster-management:other",))),
        Subject("system:open-cluster-management:edge:a:b", frozenset((GROUP,))),
    ],
)
def test_posted_request_for_anybody_else_fails_even_when_approved(newcomer: Newcomer, subject: Subject) -> None:
    post(newcomer, _posted(newcomer, subject))
    newcomer.approve("gc1")
    newcomer.issue("gc1")
    assert newcomer.store.transact(requests.state, "gc1").phase is RequestPhase.FAILED
    assert records(newcomer, "gc1") == {}


def test_posted_request_is_never_approved_by_a_rule(newcomer: Newcomer) -> None:
    post(newcomer, _posted(newcomer, agent_subject(EDGE, AGENT)))
    assert newcomer.review("gc1", "*") is None


@pytest.mark.parametrize("usages", [["server auth"], [*USAGES, "server auth"], ["digital signature"], ["any", "client auth"]])
def test_posted_request_for_another_use_fails_even_when_approved(newcomer: Newcomer, usages: list[str]) -> None:
    post(newcomer, _posted(newcomer, agent_subject(EDGE, AGENT), {"usages": usages}))
    newcomer.approve("gc1")
    newcomer.issue("gc1")
    state = newcomer.store.transact(requests.state, "gc1")
    assert (state.phase, "for client auth alone" in state.message) == (RequestPhase.FAILED, True)


def test_a_number_of_seconds_beyond_all_bounds_is_a_long_time_and_no_more(newcomer: Newcomer, clock: ManualClock) -> None:
    post(newcomer, _posted(newcomer, agent_subject(EDGE, AGENT), {"expirationSeconds": 10**18}))
    newcomer.approve("gc1")
    newcomer.issue("gc1")
    assert records(newcomer, "gc1")[Purpose.AGENT].not_after == clock.now() + timedelta(days=30)


def test_request_that_came_with_another_clusters_certificate_fails_even_when_approved(newcomer: Newcomer) -> None:
    other = Newcomer(newcomer.store, cluster=ClusterName("other")).registered()
    extra = {rules.SERIAL_EXTRA: (f"{other.serial:x}",)}
    requester = Requester(other.user, other.groups, extra=extra)
    newcomer.store.transact(requests.put, _posted(newcomer, agent_subject(EDGE, AGENT)), None, requester)
    newcomer.approve("gc1")
    newcomer.issue("gc1")
    state = newcomer.store.transact(requests.state, "gc1")
    assert (state.phase, 'asks for one of cluster "edge"' in state.message) == (RequestPhase.FAILED, True)


def test_label_of_another_cluster_makes_the_request_fail(newcomer: Newcomer) -> None:
    document = _posted(newcomer, agent_subject(EDGE, AGENT))
    document["metadata"]["labels"] = {"open-cluster-management.io/cluster-name": "other"}
    post(newcomer, document)
    newcomer.approve("gc1")
    newcomer.issue("gc1")
    assert newcomer.store.transact(requests.state, "gc1").phase is RequestPhase.FAILED


def test_other_signers_requests_are_theirs(newcomer: Newcomer) -> None:
    document = _posted(newcomer, agent_subject(EDGE, AGENT), {"signerName": "example.com/theirs"})
    post(newcomer, document)
    newcomer.approve("gc1")
    assert newcomer.issue("gc1") is None


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"request": b64encode(b"garbage").decode()}, "spec.request"),
        ({"signerName": "nosignature"}, "spec.signerName"),
        ({"signerName": ""}, "spec.signerName"),
        ({"usages": []}, "spec.usages"),
        ({"usages": ["fly", "client auth"]}, "spec.usages[0]"),
        ({"expirationSeconds": 10}, "spec.expirationSeconds"),
    ],
)
def test_posted_request_that_breaks_a_rule_names_the_field(newcomer: Newcomer, spec: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidError) as refused:
        post(newcomer, _posted(newcomer, agent_subject(EDGE, AGENT), spec))
    assert [cause.field for cause in refused.value.causes] == [field]


def _update(newcomer: Newcomer, change: Any) -> object:
    def put(tx: Transaction) -> object:
        stored = requests.find(tx, "gc1")
        return requests.put(tx, change(dict(stored.document)), stored, Requester("bob"))

    return newcomer.store.transact(put)


def _conditions(*kinds: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", "reason": "R", "message": "m"} for kind in kinds]}


def test_spec_never_changes(newcomer: Newcomer) -> None:
    post(newcomer, _posted(newcomer, agent_subject(EDGE, AGENT)))
    before = newcomer.stored("gc1").document["spec"]
    _update(newcomer, lambda document: {**document, "spec": {**document["spec"], "usages": ["any"], "username": "bob"}})
    assert newcomer.stored("gc1").document["spec"] == before


@pytest.mark.parametrize("status", [_conditions("Denied"), _conditions(), {"conditions": None}])
def test_decision_is_never_taken_back(newcomer: Newcomer, status: dict[str, Any]) -> None:
    post(newcomer, _posted(newcomer, agent_subject(EDGE, AGENT)))
    _update(newcomer, lambda document: {**document, "status": _conditions("Approved")})
    with pytest.raises(InvalidError, match='may not remove a condition of type "Approved"'):
        _update(newcomer, lambda document: {**document, "status": status})
    with pytest.raises(InvalidError, match="mutually exclusive"):
        _update(newcomer, lambda document: {**document, "status": _conditions("Approved", "Denied")})


def test_decision_through_the_api_is_dated(newcomer: Newcomer) -> None:
    post(newcomer, _posted(newcomer, agent_subject(EDGE, AGENT)))
    _update(newcomer, lambda document: {**document, "status": _conditions("Approved")})
    (condition,) = newcomer.stored("gc1").document["status"]["conditions"]
    assert condition["lastUpdateTime"] == condition["lastTransitionTime"] == "2026-01-01T00:00:00Z"


def test_certificate_is_never_replaced(newcomer: Newcomer) -> None:
    post(newcomer, _posted(newcomer, agent_subject(EDGE, AGENT)))
    newcomer.approve("gc1")
    newcomer.issue("gc1")
    with pytest.raises(InvalidError, match="existing certificate content"):
        _update(newcomer, lambda document: {**document, "status": {**document["status"], "certificate": "eA=="}})


# The end of requests.


def test_finished_requests_go_after_a_while_and_undecided_ones_later(newcomer: Newcomer, clock: ManualClock) -> None:
    issued, denied, pending = (newcomer.submit(newcomer.bootstrap()) for _ in range(3))
    clock.advance(timedelta(hours=2))
    newcomer.approve(issued)
    newcomer.issue(issued)
    decide(newcomer, denied, approve=False)

    def gone() -> int:
        due = newcomer.store.transact(requests.due, Ends())
        return newcomer.store.transact(requests.expire, due, Ends(), "hub")

    clock.advance(timedelta(minutes=59))
    assert gone() == 0
    clock.advance(timedelta(minutes=1))
    assert gone() == 2
    assert newcomer.stored(pending)
    clock.advance(timedelta(hours=21))
    assert gone() == 1
    assert len(records_of_cluster(newcomer)) == 2


def records_of_cluster(newcomer: Newcomer) -> list[CertificateRecord]:
    found = newcomer.store.transact(lambda tx: tx.certificates.of_cluster(newcomer.cluster))
    return [record for record in found if record.purpose is not Purpose.BOOTSTRAP]
