"""Who may ask for which certificate."""

import base64
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509 import CertificateSigningRequestBuilder, DNSName, SubjectAlternativeName

from hub.domain import request as rules
from hub.domain.certificate import Purpose
from hub.domain.change import ADDONS, MANAGED_CLUSTERS, REQUESTS, Key, Query
from hub.domain.request import AddOnRequest
from hub.ports import Transaction
from hub.services import addons, credentials
from machinery import pki
from machinery.clock import ManualClock
from machinery.errors import (
    AlreadyExistsError,
    ForbiddenError,
    InvalidError,
    MusterError,
    TooLargeError,
    TooManyRequestsError,
)
from machinery.identity import AddOnName, AgentId, ClusterName, Subject, addon_subject, agent_subject
from machinery.pki import names
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import AGENT, EDGE, OPERATOR, Newcomer

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


def test_same_requester_with_the_same_bytes_finds_the_same_request(newcomer: Newcomer) -> None:
    requester, request = newcomer.bootstrap(), newcomer.request()
    name = newcomer.submit(requester, request=request)
    assert newcomer.submit(requester, request=request) == name
    newcomer.approve(name)
    newcomer.issue(name)
    assert newcomer.submit(requester, request=request) == name
    assert newcomer.submit(requester, request=newcomer.request()) != name
    assert newcomer.submit(newcomer.bootstrap(), request=request) != name


def test_retry_spends_no_use_of_the_credential(newcomer: Newcomer, store: MemoryStore) -> None:
    requester = newcomer.bootstrap(uses=1)
    newcomer.submit(requester)
    newcomer.submit(requester)
    newcomer.join(requester)
    assert requester.credential is not None
    assert store.state.admissions[requester.credential] == {"edge"}


@pytest.mark.parametrize("name", ["3f2504e0-4f89-41d3-9a0c-0305e82c3301", "a" * 63])
def test_long_cluster_names_are_fine(store: MemoryStore, name: str) -> None:
    newcomer = Newcomer(store, cluster=ClusterName(name), agent=AgentId("0f8fad5b-d9cb-469f-a165-70867728950e"))
    assert newcomer.submit(newcomer.bootstrap()).startswith(f"{name}-")


PREFIX = "system:open-cluster-management:"
GROUPS = agent_subject(EDGE, AGENT).organizations


@pytest.mark.parametrize(
    "subject",
    [
        Subject(f"{PREFIX}other:agent-1", GROUPS),
        Subject(f"{PREFIX}edge1:agent-1", GROUPS),
        Subject(f"{PREFIX}edge:agent-2", GROUPS),
        Subject(f"{PREFIX}edge:agent-1:x", GROUPS),
        Subject(f"{PREFIX}edge", GROUPS),
        Subject(f"{PREFIX}edge:agent-1", frozenset(("system:masters",))),
        Subject(f"{PREFIX}edge:agent-1"),
        Subject(f"{PREFIX}edge:agent-1", GROUPS | {"system:masters"}),
        Subject(f"{PREFIX}edge:agent-1", GROUPS, frozenset(("unit",))),
    ],
)
def test_subject_must_be_exactly_the_agents(newcomer: Newcomer, subject: Subject) -> None:
    with pytest.raises(InvalidError, match="subject"):
        newcomer.submit(newcomer.bootstrap(), request=newcomer.request(subject))


def _built(key: Any, *alternatives: str) -> bytes:
    builder = CertificateSigningRequestBuilder().subject_name(
        names.build(agent_subject(ClusterName("edge"), AgentId("agent-1")))
    )
    if alternatives:
        extension = SubjectAlternativeName([DNSName(name) for name in alternatives])
        builder = builder.add_extension(extension, critical=False)
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, digest).public_bytes(serialization.Encoding.PEM)


WEAK = rsa.generate_private_key(65537, 1024)  # noqa: S505 - it must be refused


def _tampered(request: bytes) -> bytes:
    """Another signature's bits."""
    der = bytearray(_der(request))
    der[-5] ^= 0x01
    return _pem(bytes(der))


def _der(request: bytes) -> bytes:
    return base64.b64decode(b"".join(request.splitlines()[1:-1]))


def _pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE REQUEST-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE REQUEST-----\n"


@pytest.mark.parametrize(
    ("request_bytes", "error"),
    [
        (b"", InvalidError),
        (b"garbage", InvalidError),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", InvalidError),
        (b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", InvalidError),
        (b"A" * 100_000, TooLargeError),
        (_built(ed25519.Ed25519PrivateKey.generate()), InvalidError),
        (_built(ec.generate_private_key(ec.SECP521R1())), InvalidError),
        (_built(WEAK), InvalidError),
        (_built(ec.generate_private_key(ec.SECP256R1()), "hub.example.com"), InvalidError),
        (_tampered(_built(ec.generate_private_key(ec.SECP256R1()))), InvalidError),
    ],
    ids=["empty", "garbage", "certificate", "no-der", "huge", "ed25519", "p521", "rsa1024", "dns-name", "tampered"],
)
def test_unusable_request_is_refused(newcomer: Newcomer, request_bytes: bytes, error: type[MusterError]) -> None:
    requester = newcomer.bootstrap()
    with pytest.raises(error):
        newcomer.submit(requester, request=request_bytes)
    assert newcomer.store.transact(lambda tx: tx.objects.find(REQUESTS, Query())).items == ()


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)])
def test_other_keys_that_grpc_can_use_are_fine(newcomer: Newcomer, key: Any) -> None:
    assert newcomer.submit(newcomer.bootstrap(), request=_built(key))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"cluster": ClusterName("other")}, "is for cluster"),
        ({"uses": 1, "spent": True}, "of 1, 0 spent and 1 held for others"),
        ({"late": True}, "not valid now"),
    ],
)
def test_bootstrap_credential_bounds_what_is_asked_for(
    newcomer: Newcomer, clock: ManualClock, asked: dict[str, Any], words: str
) -> None:
    late, spent = asked.pop("late", False), asked.pop("spent", False)
    requester = newcomer.bootstrap(**asked)
    if spent:
        other = Newcomer(newcomer.store, cluster=ClusterName("first"))
        other.submit(requester)
    if late:
        clock.advance(timedelta(hours=1, seconds=1))
    with pytest.raises(ForbiddenError, match=words):
        newcomer.submit(requester)


def test_revoked_credential_asks_for_nothing(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap()
    assert requester.credential is not None
    newcomer.store.transact(credentials.revoke, requester.credential)
    with pytest.raises(ForbiddenError, match="revoked"):
        newcomer.submit(requester)


def test_name_of_another_cluster_is_refused(newcomer: Newcomer) -> None:
    newcomer.join(newcomer.bootstrap())
    impostor = Newcomer(newcomer.store, uid="uid-2")
    with pytest.raises(AlreadyExistsError, match="another cluster"):
        impostor.submit(impostor.bootstrap())


def test_agent_renews_only_itself(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()
    fresh = pki.generate_key()
    assert newcomer.submit(certificate, request=newcomer.request(key=fresh))
    for cluster, agent in (("other", "agent-1"), ("edge", "agent-2"), ("edge1", "agent-1")):
        other = Newcomer(newcomer.store, cluster=ClusterName(cluster), agent=AgentId(agent))
        with pytest.raises(ForbiddenError, match="comes from agent"):
            other.submit(certificate)


def test_revoked_or_expired_agent_asks_for_nothing(newcomer: Newcomer, clock: ManualClock) -> None:
    certificate = newcomer.registered()
    clock.advance(timedelta(days=31))
    with pytest.raises(ForbiddenError, match="not valid now"):
        newcomer.submit(certificate)


def test_recovery_certificate_requests_nothing(newcomer: Newcomer) -> None:
    newcomer.registered()
    with pytest.raises(ForbiddenError, match="purpose recovery"):
        newcomer.submit(newcomer.certificate(Purpose.RECOVERY))


def test_key_of_another_cluster_or_of_a_credential_is_refused(newcomer: Newcomer) -> None:
    newcomer.registered()
    thief = Newcomer(newcomer.store, cluster=ClusterName("thief"), uid="uid-2", key=newcomer.key)
    with pytest.raises(ForbiddenError, match="already in use"):
        thief.submit(thief.bootstrap())


def test_key_of_a_revoked_certificate_is_refused(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()
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


def _register_addon(tx: Transaction, /, **subject: Any) -> None:
    registration = {"type": "kubeClient", "kubeClient": {"driver": "csr", "subject": subject}}
    document = {
        "metadata": {"name": "work", "namespace": "edge"},
        "status": {"registrations": [registration]},
    }
    addons.put(tx, document, tx.objects.get(ADDONS, Key("edge", "work")), OPERATOR)


def test_addon_certificate_needs_a_registration_with_that_subject(newcomer: Newcomer) -> None:
    certificate = newcomer.registered()
    asked = AddOnRequest(ADDON, SIGNER)
    default = addon_subject(newcomer.cluster, ADDON, ADDON)
    key = pki.generate_key()
    request = pki.build_request(default, key, ("work.addon.open-cluster-management.io",))
    with pytest.raises(ForbiddenError, match="no registration"):
        newcomer.submit(certificate, addon=asked, request=request)
    newcomer.store.transact(_register_addon)
    with pytest.raises(ForbiddenError, match="no registration"):
        newcomer.submit(certificate, addon=AddOnRequest(ADDON, "example.com/other"), request=request)
    with pytest.raises(InvalidError, match="subject"):
        newcomer.submit(certificate, addon=asked, request=pki.build_request(Subject("system:admin"), key))
    with pytest.raises(ForbiddenError, match="purpose bootstrap"):
        newcomer.submit(newcomer.bootstrap(), addon=asked, request=request)
    name = newcomer.submit(certificate, addon=asked, request=request)
    assert name.startswith("addon-edge-work-")
    assert newcomer.stored(name).document["metadata"]["labels"] == {
        "open-cluster-management.io/cluster-name": "edge",
        "open-cluster-management.io/addon-name": "work",
    }


def test_cluster_need_not_exist_before_its_request(newcomer: Newcomer) -> None:
    newcomer.submit(newcomer.bootstrap())
    assert newcomer.store.transact(lambda tx: tx.objects.find(MANAGED_CLUSTERS, Query())).items == ()
