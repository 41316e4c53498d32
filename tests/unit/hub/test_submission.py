"""Who may ask for which certificate, and mutated requests: `make fuzz` tries a million."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from bench.csrs.attempts import FORGERIES
from bench.csrs.mutations import MUTATIONS
from bench.csrs.runs import run_cases
from hub.api.certificates import Purpose
from hub.api.certificatesigningrequests import request as rules
from hub.api.certificatesigningrequests.request import AddOnRequest
from hub.api.meta.change import REQUESTS
from machinery import pki
from machinery.errors import ForbiddenError, InvalidError, TooManyRequestsError
from machinery.identity import AddOnName, AgentId, CertificateSubject, ClusterName, addon_subject, agent_subject
from machinery.meta.objects import Query
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusals
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import AGENT, EDGE, Newcomer
from tests.trials import soaked, trials
from tests.unit.hub.test_issuance import register_addon

ADDON = AddOnName("work")
SIGNER = "kubernetes.io/kube-apiserver-client"


def test_request_is_stored_as_kubernetes_has_it(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap()
    name = newcomer.submit(requester, requested_duration=timedelta(hours=2))
    document = newcomer.stored(name).document
    assert name.startswith("edge-")
    assert len(name) == len("edge-12345")
    assert document["apiVersion"] == "certificates.k8s.io/v1"
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


def test_same_requester_with_the_same_bytes_finds_the_same_request(newcomer: Newcomer, store: InlineStore) -> None:
    requester, request = newcomer.bootstrap(uses=1), newcomer.request()
    name = newcomer.submit(requester, request=request)
    assert newcomer.submit(requester, request=request) == name
    newcomer.join(requester)
    assert requester.credential is not None
    assert store.state.admissions[requester.credential] == {"edge"}, "a retry spends no use"
    newcomer.approve(name)
    newcomer.issue(name)
    assert newcomer.submit(requester, request=request) == name
    assert newcomer.submit(requester, request=newcomer.request()) != name
    assert newcomer.submit(newcomer.bootstrap(), request=request) != name


PREFIX = "system:open-cluster-management:"
GROUPS = agent_subject(EDGE, AGENT).organizations


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
    with pytest.raises(InvalidError):
        newcomer.submit(newcomer.bootstrap(), request=named)
    assert newcomer.store.transact(lambda tx: tx.objects.find(REQUESTS, Query())).items == ()


def test_agent_renews_only_itself_and_only_while_its_certificate_is_valid(newcomer: Newcomer, clock: ManualClock) -> None:
    certificate = newcomer.registered()
    fresh = pki.generate_key()
    assert newcomer.submit(certificate, request=newcomer.request(key=fresh))
    for cluster, agent in (("other", "agent-1"), ("edge", "agent-2"), ("edge1", "agent-1")):
        other = Newcomer(newcomer.store, cluster=ClusterName(cluster), agent=AgentId(agent))
        with pytest.raises(ForbiddenError, match="comes from agent"):
            other.submit(certificate)
    with pytest.raises(ForbiddenError, match="purpose recovery"):
        newcomer.submit(newcomer.certificate(Purpose.RECOVERY))
    clock.advance(timedelta(days=31))
    with pytest.raises(ForbiddenError, match="not valid now"):
        newcomer.submit(certificate)


def test_key_of_another_cluster_or_of_a_revoked_certificate_is_refused(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()
    thief = Newcomer(newcomer.store, cluster=ClusterName("thief"), uid="uid-2", key=newcomer.key)
    with pytest.raises(ForbiddenError, match="already in use"):
        thief.submit(thief.bootstrap())
    newcomer.store.transact(lambda tx: tx.certificates.revoke([certificate.serial], tx.now, "Stolen"))
    with pytest.raises(ForbiddenError, match="revoked certificate"):
        newcomer.submit(newcomer.bootstrap())


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
    certificate = newcomer.registered()
    asked = AddOnRequest(ADDON, SIGNER)
    default = addon_subject(newcomer.cluster, ADDON, ADDON)
    key = pki.generate_key()
    request = pki.build_request(default, key, ("work.addon.open-cluster-management.io",))
    with pytest.raises(ForbiddenError, match="no registration"):
        newcomer.submit(certificate, addon=asked, request=request)
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


SEED = 20_261_122
CASES = trials(1500, 50_000)


@soaked(CASES)
@pytest.mark.timeout(600)
def test_no_mutated_request_crashes_or_is_signed_against_the_policy(record_property: Callable[[str, object], None]) -> None:
    record_property("seed", SEED)
    total = run_cases(SEED, 0, CASES)
    assert total.findings == []
    assert total.cases == CASES
    assert set(total.mutations) == {"none", *(mutation.__name__ for mutation in (*MUTATIONS, *FORGERIES))}, "each was tried"
    for outcome in ("Issued", "InvalidError", "ForbiddenError", "Failed", "TooLargeError"):
        assert total.outcomes[outcome] > CASES / 100, total.outcomes
