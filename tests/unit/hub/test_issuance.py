"""Approving without a human, and signing: once per request, with every field from the records."""

from base64 import b64encode
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from hub.api import certificatesigningrequests as rules
from hub.api.bootstrapcredentials import CredentialRecord
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests import AddOnRequest, Requester, RequestPhase, RequestRetention, RequestState
from hub.api.managed_fields import HUB_WRITER
from hub.api.managedclusteraddons.addon import SUBJECTS, leaves_registrations_unchanged
from hub.api.meta.change import ADDON_DEFINITIONS, ADDONS, REQUESTS
from hub.ports import Transaction
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.bootstrapcredentials.service import CredentialTerms, create_token
from hub.registry.certificatesigningrequests import service as request_ends
from hub.registry.certificatesigningrequests.submission import submit
from hub.registry.generic import objects
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from hub.registry.recovery import recover
from machinery import identity, pki
from machinery.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError, TooManyRequestsError, UnavailableError
from machinery.identity import AddOnName, AgentId, CertificateSubject, ClusterName, addon_subject, agent_subject, bootstrap_user
from machinery.meta.objects import Key
from machinery.runtime.clock import ManualClock
from tests.checks import check_each, check_refusal, check_results, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import AGENT, EDGE, OPERATOR, Newcomer, fresh_newcomer

SIGNER = "kubernetes.io/kube-apiserver-client"
USAGES = ["digital signature", "key encipherment", "client auth"]
CN = "system:open-cluster-management:edge:agent-1"
GROUP = "system:open-cluster-management:edge"
WORK = AddOnRequest(AddOnName("work"), SIGNER)


def records(newcomer: Newcomer, name: str) -> dict[Purpose, CertificateRecord]:
    uid = newcomer.stored(name).uid
    return {record.purpose: record for record in newcomer.store.transact(lambda tx: tx.certificates.of_request(uid))}


def test_certificates_are_signed_once_from_the_records_or_not_at_all(newcomer: Newcomer, clock: ManualClock) -> None:
    requester = newcomer.bootstrap()
    name = newcomer.submit(requester)
    newcomer.approve(name)
    newcomer.issuer.failure = UnavailableError("the CA is unavailable")
    check_refusal(UnavailableError, newcomer.issue, name)
    assert records(newcomer, name) == {}
    newcomer.issuer.failure = None
    assert newcomer.issue(name) is not None
    count = len(newcomer.issuer.issued)
    assert (newcomer.issue(name), len(newcomer.issuer.issued)) == (None, count)
    key_hash = pki.key_hash(pki.public_key_of(newcomer.key))
    now, backdated = clock.now(), clock.now() - timedelta(minutes=5)
    issued = records(newcomer, name)
    agent, recovery = issued[Purpose.AGENT], issued[Purpose.RECOVERY]
    assert (len(issued), agent.user, set(agent.groups)) == (2, CN, {GROUP, identity.ALL_CLUSTERS_GROUP})
    assert (agent.cluster, agent.agent, agent.credential) == (EDGE, AGENT, requester.credential)
    assert (agent.not_before, agent.not_after) == (backdated, now + timedelta(days=30))
    assert (recovery.user, recovery.groups) == ("system:recovery:edge:agent-1", ())
    assert (recovery.not_before, recovery.not_after) == (backdated, now + timedelta(days=90))
    assert agent.key_hash == recovery.key_hash == key_hash
    assert agent.serial != recovery.serial
    assert [serial for _, serial in newcomer.issuer.issued[-2:]] == [agent.serial, recovery.serial]
    state = newcomer.state(name)
    assert (state.phase, state.is_final) == (RequestPhase.ISSUED, True)
    assert state.certificate == f"agent {CN}\n".encode()
    assert state.recovery_certificate == b"recovery system:recovery:edge:agent-1\n"
    assert newcomer.stored(name).document["status"]["certificate"] == b64encode(state.certificate).decode()


def test_decision_is_taken_once_and_only_approved_requests_are_signed(newcomer: Newcomer, clock: ManualClock) -> None:
    approved, denied = (newcomer.submit(newcomer.bootstrap()) for _ in range(2))
    assert newcomer.issue(denied) is None
    newcomer.deny(denied)
    assert (newcomer.issue(denied), records(newcomer, denied)) == (None, {})
    state = newcomer.state(denied)
    assert (state.phase, state.reason, state.message, state.is_final) == (RequestPhase.DENIED, "Test", "no", True)
    check_refusal(ConflictError, newcomer.approve, denied, match="already denied")
    newcomer.approve(approved)
    before = newcomer.stored(approved)
    clock.advance(timedelta(hours=1))
    newcomer.approve(approved)
    assert newcomer.stored(approved) == before
    check_refusal(ConflictError, newcomer.deny, approved, match="already approved")
    check_refusal(NotFoundError, newcomer.state, "nobody", match="nobody")


def test_requester_may_shorten_the_lifetime_only(newcomer: Newcomer) -> None:
    def hours(asked: timedelta | None) -> float:
        record = records(newcomer, newcomer.issued(newcomer.bootstrap(), requested_duration=asked))[Purpose.AGENT]
        return (record.not_after - record.issued_at) / timedelta(hours=1)

    check_results(hours, ((None, 720), (timedelta(hours=2), 2), (timedelta(days=365), 720), (timedelta(seconds=1), 1 / 6)))


def test_credential_revoked_since_makes_the_request_fail(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap()
    name = newcomer.submit(requester)
    newcomer.approve(name)
    newcomer.store.transact(credentials.revoke, present(requester.credential))
    newcomer.issue(name)
    state = newcomer.state(name)
    assert (state.phase, state.reason) == (RequestPhase.FAILED, "SignerValidationFailure")
    assert "revoked" in state.message
    assert records(newcomer, name) == {}


def test_rule_approves_names_that_match_once_and_not_after_a_denial(newcomer: Newcomer) -> None:
    def phase(*globs: str) -> RequestPhase:
        name = newcomer.submit(newcomer.bootstrap())
        newcomer.review(name, *globs)
        return newcomer.state(name).phase

    check_results(phase, [(*globs, RequestPhase.APPROVED) for globs in [("edge",), ("ed*",), ("x", "*")]])
    others: list[tuple[str, ...]] = [(), ("Edge",), ("dge",)]
    check_results(phase, [(*globs, RequestPhase.PENDING) for globs in others])
    denied, other = (newcomer.submit(newcomer.bootstrap()) for _ in range(2))
    newcomer.deny(denied)
    assert newcomer.review(denied, "*") is None
    assert newcomer.review(other, "*") is not None
    assert newcomer.review(other, "*") is None


def renewal(newcomer: Newcomer, certificate: CertificateRecord) -> str:
    return newcomer.submit(certificate, request=newcomer.request(key=pki.generate_key()))


def test_renewal_is_approved_while_its_cluster_is_accepted_and_its_certificate_valid(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()
    name, later, last = (renewal(newcomer, certificate) for _ in range(3))
    newcomer.accept(accepted=False)
    assert newcomer.review(name, "*") is None
    newcomer.accept()
    assert newcomer.review(name) is not None
    assert newcomer.state(name).reason == "AutoApprovedByHubCSRApprovingController"
    assert newcomer.issue(name) is not None
    newcomer.store.transact(lambda tx: tx.certificates.revoke([certificate.serial], tx.now, "Stolen"))
    assert newcomer.review(later, "*") is None
    newcomer.store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE), OPERATOR))
    assert newcomer.review(last, "*") is None


def test_superseded_agent_waits_for_an_operator_until_its_successor_is_revoked(newcomer: Newcomer, clock: ManualClock) -> None:
    """Two agents with one cluster name: the one that came last is the cluster's own."""
    certificate = newcomer.registered()
    newcomer.store.transact(register_addon)
    addon = _addon_request(newcomer, certificate)
    clock.advance(timedelta(seconds=1))
    other = Newcomer(newcomer.store, agent=AgentId("agent-2"))
    successor, name = other.registered(), renewal(newcomer, certificate)
    assert (newcomer.review(name, "*"), newcomer.review(addon, "*")) == (None, None)
    assert other.review(renewal(other, successor)) is not None
    newcomer.store.transact(lambda tx: tx.certificates.revoke([successor.serial], tx.now, "Stolen"))
    assert newcomer.review(name) is not None


def test_request_that_is_not_its_requesters_own_waits_for_an_operator(newcomer: Newcomer) -> None:
    """Submission checks this already; the approver checks it again."""
    certificate = newcomer.registered()
    newcomer.store.transact(register_addon)
    other = Newcomer(newcomer.store, cluster=ClusterName("other"), uid="uid-2")
    others = other.registered()
    request = pki.build_request(addon_subject(EDGE, AddOnName("work"), "work"), pki.generate_key())
    rows = {
        "another agent": Newcomer(newcomer.store, agent=AgentId("agent-2")).submission(certificate),
        "another cluster": other.submission(certificate),
        "add-on of another cluster": newcomer.submission(others, addon=WORK, request=request),
    }
    for name, submission in rows.items():
        document = rules.submitted_document(submission, name)
        newcomer.store.transact(objects.write, REQUESTS, document, None, "forger", writer=HUB_WRITER)
        assert newcomer.review(name, "*") is None, name


@pytest.mark.parametrize(("asker", "target"), [("edge", "edge1"), ("edge1", "edge")])
def test_addon_request_of_a_cluster_with_the_same_prefix_is_never_signed(store: InlineStore, asker: str, target: str) -> None:
    own, others = (Newcomer(store, cluster=ClusterName(name), uid=f"uid-{name}") for name in (asker, target))
    certificates = {"forged": own.registered(), "own": others.registered()}
    store.transact(register_addon, target)
    subject = addon_subject(others.cluster, AddOnName("work"), "work")
    for name, certificate in certificates.items():
        submitted = others.submission(certificate, addon=WORK, request=pki.build_request(subject, pki.generate_key()))
        store.transact(objects.write, REQUESTS, rules.submitted_document(submitted, name), None, "anyone", writer=HUB_WRITER)
    assert own.review("own", "*") is not None
    assert own.review("forged", "*") is None
    state = signed(own, "forged")
    assert state.phase is RequestPhase.FAILED, "although it is approved"
    assert f'has a certificate of cluster "{asker}", and the request is for cluster "{target}"' in state.message


def register_addon(tx: Transaction, cluster: str = "edge", /, **subject: Any) -> None:
    registration = {"type": "kubeClient", "kubeClient": {"driver": "csr", "subject": subject}}
    document = {"metadata": {"name": "work", "namespace": cluster}, "status": {"registrations": [registration]}}
    addons.put(tx, document, tx.objects.get(ADDONS, Key(cluster, "work")), OPERATOR)


def _addon_request(newcomer: Newcomer, certificate: CertificateRecord) -> str:
    subject = addon_subject(EDGE, AddOnName("work"), "work")
    request = pki.build_request(subject, pki.generate_key(), ("work.addon.open-cluster-management.io",))
    return newcomer.submit(certificate, addon=WORK, request=request)


def failure(newcomer: Newcomer, name: str) -> str:
    """Why the signer refuses a request that no rule approves and an operator does."""
    assert newcomer.review(name, "*") is None
    state = signed(newcomer, name)
    assert state.phase is RequestPhase.FAILED
    return state.message


def test_addon_that_is_registered_under_a_reserved_name_gets_no_certificate(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()

    def check(user: str, group: str) -> None:
        newcomer.store.transact(lambda tx: register_addon(tx, user=user, groups=[group]))
        request = pki.build_request(CertificateSubject(user, frozenset((group,))), pki.generate_key())
        submission = newcomer.submission(certificate, addon=WORK, request=request)
        newcomer.store.transact(_list_subjects, "")
        check_refusal(ForbiddenError, newcomer.store.transact, submit, submission, match="not its own names")
        newcomer.store.transact(_list_subjects, f"{user}, {group}")
        name = newcomer.store.transact(submit, submission)
        if user == "listed":
            assert signed(newcomer, name).phase is RequestPhase.ISSUED
        else:
            assert "a name that add-ons may not have" in failure(newcomer, name)
        newcomer.store.transact(_list_subjects, "")
        newcomer.store.transact(register_addon)

    rows = (
        ("listed", "system:nodes"),
        ("ann", "system:masters"),
        ("ann", "system:open-cluster-management:other"),
        ("system:open-cluster-management:other:agent-1", "g"),
    )
    check_each(check, rows)


def test_addon_whose_registration_changed_or_that_is_being_deleted_gets_no_certificate(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()

    def check(changed: dict[str, Any]) -> None:
        newcomer.store.transact(register_addon)
        name = _addon_request(newcomer, certificate)
        newcomer.store.transact(lambda tx: register_addon(tx, **changed))
        assert failure(newcomer, name)

    check_each(check, [({"user": "somebody-else"},), ({"groups": ["another"]},), ({"organizationUnits": ["another"]},)])
    newcomer.store.transact(register_addon)
    name = _addon_request(newcomer, certificate)
    newcomer.store.transact(_begin_deletion)
    assert "is being deleted" in failure(newcomer, name)
    check_refusal(ForbiddenError, _addon_request, newcomer, certificate, match="is being deleted")


def _begin_deletion(tx: Transaction) -> None:
    stored = addons.find(tx, EDGE, AddOnName("work"))
    held = {**stored.document, "metadata": {**stored.document["metadata"], "finalizers": ["example.com/wait"]}}
    addons.put(tx, held, stored, OPERATOR)
    objects.remove(tx, ADDONS, addons.find(tx, EDGE, AddOnName("work")), OPERATOR, generations=True)


def test_addon_with_a_signer_of_its_own_is_left_to_that_signer(newcomer: Newcomer) -> None:
    certificate, signer = newcomer.registered(), "example.com/signer"
    registration = {"type": "customSigner", "customSigner": {"signerName": signer, "subject": {"user": "u"}}}
    document = {"metadata": {"name": "work", "namespace": "edge"}, "status": {"registrations": [registration]}}
    newcomer.store.transact(addons.put, document, None, OPERATOR)
    request = pki.build_request(CertificateSubject("u"), pki.generate_key())
    name = newcomer.submit(certificate, addon=AddOnRequest(AddOnName("work"), signer), request=request)
    assert newcomer.review(name, "*") is None
    newcomer.approve(name)
    assert (newcomer.issue(name), newcomer.state(name).phase) == (None, RequestPhase.APPROVED)


def _posted(newcomer: Newcomer, subject: CertificateSubject, spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
    request = b64encode(newcomer.request(subject)).decode()
    return {
        "metadata": {"name": "gc1", "labels": {identity.CLUSTER_LABEL: subject.common_name.split(":")[-2]}},
        "spec": {"request": request, "signerName": SIGNER, "usages": USAGES, **(spec or {})},
        "status": {"certificate": "forged"},
    }


def post(newcomer: Newcomer, document: dict[str, Any]) -> object:
    return newcomer.store.transact(request_ends.put, document, None, Requester(OPERATOR, ("system:masters",), "u1"))


def signed(newcomer: Newcomer, name: str = "gc1") -> RequestState:
    """The state of a request once it is approved and the signer has seen it."""
    newcomer.approve(name)
    newcomer.issue(name)
    return newcomer.state(name)


def test_posted_request_has_the_requesters_names_and_no_rule_approves_it(newcomer: Newcomer) -> None:
    extra = {"hub.open-cluster-management.io/certificate-serial": ["1"]}
    claims = {"username": "admin", "groups": ["x"], "uid": "y", "extra": extra}
    post(newcomer, _posted(newcomer, agent_subject(EDGE, AGENT), claims))
    document = newcomer.stored("gc1").document
    spec = document["spec"]
    assert (spec["username"], spec["groups"], spec["uid"]) == (OPERATOR, ["system:masters"], "u1")
    assert "extra" not in spec
    assert (document["status"], newcomer.review("gc1", "*")) == ({}, None)


def token_of(newcomer: Newcomer, cluster: ClusterName | None = EDGE) -> CredentialRecord:
    return newcomer.store.transact(create_token, CredentialTerms(cluster, 1, timedelta(hours=1)), OPERATOR)[0]


def test_cluster_has_few_pending_requests_at_the_operators_door_too() -> None:
    """A decision makes room; an operator's requests are not counted."""

    def check(labels: dict[str, Any]) -> None:
        newcomer = fresh_newcomer()
        requester = Requester(bootstrap_user(token_of(newcomer).id), ())

        def post_one(name: str) -> None:
            document = {**_posted(newcomer, agent_subject(EDGE, AGENT)), "metadata": {"name": name, **labels}}
            newcomer.store.transact(request_ends.put, document, None, requester)

        for number in range(rules.MAX_PENDING):
            post_one(f"csr-{number}")
        check_refusal(TooManyRequestsError, post_one, "one-more", match="wait for a decision")
        post(newcomer, {**_posted(newcomer, agent_subject(EDGE, AGENT)), "metadata": {"name": "operators"}})
        newcomer.deny("csr-0")
        post_one("one-more")

    check_each(check, [({"labels": {identity.CLUSTER_LABEL: "edge"}},), ({},)])


def test_token_for_another_cluster_posts_nothing_and_gets_nothing_signed(newcomer: Newcomer) -> None:
    record = token_of(newcomer, ClusterName("other"))
    asked = _posted(newcomer, agent_subject(EDGE, AGENT)), None, Requester(bootstrap_user(record.id), ())
    refused = 'is for cluster "other", not for "edge"'
    check_refusal(ForbiddenError, newcomer.store.transact, request_ends.put, *asked, match=refused)
    assert newcomer.store.transact(lambda tx: tx.objects.get(REQUESTS, Key("", "gc1"))) is None
    posted = _posted(newcomer, agent_subject(EDGE, AGENT), {"username": bootstrap_user(record.id), "groups": []})
    document = {**posted, "apiVersion": rules.API_VERSION, "kind": rules.KIND, "status": {}}
    newcomer.store.transact(objects.write, REQUESTS, document, None, "test", writer=HUB_WRITER)
    assert signed(newcomer).phase is RequestPhase.FAILED


def test_posted_request_gets_the_common_group_and_at_most_the_longest_lifetime(newcomer: Newcomer, clock: ManualClock) -> None:
    post(newcomer, _posted(newcomer, CertificateSubject(CN, frozenset((GROUP,))), {"expirationSeconds": 10**18}))
    signed(newcomer)
    record = records(newcomer, "gc1")[Purpose.AGENT]
    assert (set(record.groups), record.not_after) == ({GROUP, identity.ALL_CLUSTERS_GROUP}, clock.now() + timedelta(days=30))


def test_approved_request_for_other_names_uses_or_clusters_fails() -> None:
    own = agent_subject(EDGE, AGENT)

    def check(subject: CertificateSubject, spec: dict[str, Any], label: str | None, message: str) -> None:
        newcomer = fresh_newcomer()
        document = _posted(newcomer, subject, spec)
        if label is not None:
            document["metadata"]["labels"] = {identity.CLUSTER_LABEL: label}
        post(newcomer, document)
        state = signed(newcomer)
        assert (state.phase, message in state.message) == (RequestPhase.FAILED, True), state.message
        assert records(newcomer, "gc1") == {}

    subjects = (
        CertificateSubject("system:admin", frozenset(("system:masters",))),
        CertificateSubject(CN, frozenset(("system:masters", GROUP))),
        CertificateSubject(CN, frozenset(("system:open-cluster-management:other",))),
        CertificateSubject("system:open-cluster-management:edge:a:b", frozenset((GROUP,))),
    )
    usages = (["server auth"], [*USAGES, "server auth"], ["digital signature"], ["any", "client auth"])
    rows: list[tuple[Any, ...]] = [(subject, {}, None, "") for subject in subjects]
    rows += [(own, {"usages": each}, None, "for client auth only") for each in usages]
    check_each(check, [*rows, (own, {}, "other", "")])


def test_finished_requests_go_after_a_while_and_undecided_ones_later(newcomer: Newcomer, clock: ManualClock) -> None:
    issued, denied, pending = (newcomer.submit(newcomer.bootstrap()) for _ in range(3))
    clock.advance(timedelta(hours=2))
    newcomer.approve(issued)
    newcomer.issue(issued)
    newcomer.deny(denied)

    def gone() -> int:
        due, _ = newcomer.store.transact(request_ends.due_for_removal, RequestRetention(), None)
        return newcomer.store.transact(request_ends.expire, due, RequestRetention(), "hub")

    clock.advance(timedelta(minutes=59))
    assert gone() == 0
    clock.advance(timedelta(minutes=1))
    assert (gone(), bool(newcomer.stored(pending))) == (2, True)
    clock.advance(timedelta(hours=21))
    assert gone() == 1
    left = newcomer.store.transact(lambda tx: tx.certificates.of_cluster(EDGE))
    assert sorted({record.purpose for record in left} - {Purpose.BOOTSTRAP}) == [Purpose.AGENT, Purpose.RECOVERY]


def _list_subjects(tx: Transaction, names: str) -> None:
    document = {"metadata": {"name": "work", "annotations": {SUBJECTS: names}}, "spec": {}}
    objects.put(tx, ADDON_DEFINITIONS, document, tx.objects.get(ADDON_DEFINITIONS, Key("", "work")), OPERATOR)


def test_certificate_of_an_addon_has_its_own_names_or_those_that_its_definition_lists(newcomer: Newcomer) -> None:
    """Whatever a registration says; and a registration with the signer of the hub's CA is not one with a signer of its own."""
    certificate, prefix = newcomer.registered(), "system:open-cluster-management:"
    own = f"{prefix}cluster:edge:addon:work"
    rows: tuple[tuple[dict[str, Any], bool], ...] = (
        ({"user": f"{own}:agent:x", "groups": [own, f"{prefix}addon:work", "system:authenticated"]}, True),
        ({"user": "system:kube-controller-manager", "groups": ["system:nodes"]}, False),
        ({"user": f"{own}:agent:x", "groups": [own, "system:nodes"]}, False),
        *(({"user": f"{prefix}cluster:edge:addon:work2:agent:x"}, False), ({"groups": [f"{prefix}addon:other"]}, False)),
        ({"user": "system:serviceaccount:edge:work-agent"}, False),
    )

    def may(registered: dict[str, Any]) -> bool:
        newcomer.store.transact(lambda tx: register_addon(tx, **registered))
        default = addon_subject(EDGE, AddOnName("work"), "work")
        user, groups = registered.get("user", default.common_name), registered.get("groups", default.organizations)
        request = pki.build_request(CertificateSubject(user, frozenset(groups)), pki.generate_key())
        try:
            return signed(newcomer, newcomer.submit(certificate, addon=WORK, request=request)).phase is RequestPhase.ISSUED
        except ForbiddenError:
            return False

    check_results(may, rows)
    custom = {"type": "customSigner", "customSigner": {"signerName": SIGNER, "subject": {"user": "u"}}}
    document = {"metadata": {"name": "work", "namespace": "edge"}, "status": {"registrations": [custom]}}
    newcomer.store.transact(lambda tx: addons.put(tx, document, tx.objects.get(ADDONS, Key("edge", "work")), OPERATOR))
    with pytest.raises(ForbiddenError, match="no registration"):
        newcomer.submit(certificate, addon=WORK, request=pki.build_request(CertificateSubject("u"), pki.generate_key()))


def test_agent_changes_of_an_addons_registrations_the_driver_alone() -> None:
    def addon(*registrations: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"name": "work", "namespace": "edge"}, "status": {"registrations": list(registrations)}}

    def client(**client: Any) -> dict[str, Any]:
        return {"type": "kubeClient", "kubeClient": client}

    def signer(user: str) -> dict[str, Any]:
        return {"type": "customSigner", "customSigner": {"signerName": "example.com/s", "subject": {"user": user}}}

    token = {"user": "system:serviceaccount:edge:work-agent"}
    rows = (
        *((client(), client(driver="csr"), True), (client(), client(driver="csr", subject={"user": ""}), True)),
        (signer(""), {"type": "customSigner", "customSigner": {"signerName": "example.com/s"}}, True),
        (client(driver="csr"), client(driver="token", subject=token), True),
        (client(driver="token", subject=token), client(driver="csr"), True),
        (client(subject={"user": "a"}), client(driver="token", subject=token), True),
        (client(), client(subject={"user": "system:admin"}), False),
        (client(), client(subject={"groups": ["system:nodes"]}), False),
        *((client(subject={"user": "a"}), client(), False), (client(), signer("u"), False)),
        (signer("u"), signer("v"), False),
    )
    check_results(lambda old, new: leaves_registrations_unchanged(addon(new), addon(old)), rows)
    own = "system:open-cluster-management:cluster:edge:addon:work"
    added = (
        ((client(driver="csr", subject={"user": f"{own}:agent:work", "groups": [own]}),), True),
        ((client(subject={"user": "system:admin"}),), False),
        ((client(subject={"groups": ["system:nodes"]}),), False),
        ((signer("u"),), False),
    )
    check_results(lambda more: leaves_registrations_unchanged(addon(client(), *more), addon(client())), added)
    assert not leaves_registrations_unchanged(addon(), addon(client()))


def test_requests_of_others_hold_up_neither_the_renewal_nor_the_recovery_of_an_agent(newcomer: Newcomer) -> None:
    """Neither under the cluster's label, nor for its name, nor by its own add-ons; a label of another cluster is refused."""
    agent, anybody = newcomer.registered(), Requester(bootstrap_user(token_of(newcomer, None).id), ())
    own = Requester(agent.user, tuple(agent.groups), extra={rules.SERIAL_EXTRA: (f"{agent.serial:x}",)})
    foreign = _posted(newcomer, agent_subject(ClusterName("foreign"), AGENT))

    def ask(requester: Requester, number: int, document: dict[str, Any], **labels: str) -> None:
        metadata = {"name": f"{requester.user[-5:]}-{number}", "labels": labels}
        newcomer.store.transact(request_ends.put, {**document, "metadata": metadata}, None, requester)

    for requester, document in ((anybody, foreign), (own, _posted(newcomer, agent_subject(EDGE, AGENT)))):
        check_refusal(InvalidError, ask, requester, 99, document, **{identity.CLUSTER_LABEL: "other"}, match='names "other"')
    with pytest.raises(InvalidError, match='names "edge", but the request is for cluster "foreign"'):
        ask(anybody, 99, foreign, **{identity.CLUSTER_LABEL: "edge"})
    for number in range(rules.MAX_PENDING):
        ask(anybody, number, _posted(newcomer, agent_subject(EDGE, AGENT)))
        addon = {**_posted(newcomer, agent_subject(EDGE, AGENT)), "metadata": {}}
        ask(own, number, addon, **{identity.CLUSTER_LABEL: "edge", rules.ADDON_LABEL: "work"})
    check_refusal(TooManyRequestsError, ask, anybody, 98, _posted(newcomer, agent_subject(EDGE, AGENT)))
    assert newcomer.submit(agent, request=newcomer.request(key=pki.generate_key()))
    asked = newcomer.submission(newcomer.certificate(Purpose.RECOVERY), request=newcomer.request(key=pki.generate_key()))
    assert newcomer.store.transact(lambda tx: recover(tx, asked, unattended=True))
