"""A cluster on its way into a hub, for tests of the use cases: its key, its requests and its certificates."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hub.api.bootstrapcredentials import CredentialRecord
from hub.api.certificates import CertificateRecord, Lifetimes, Purpose
from hub.api.certificatesigningrequests import RequestState, Submission
from hub.api.managedclusters.cluster import JoinRequest
from hub.api.meta import document as doc
from hub.api.meta.change import REQUESTS
from hub.ports import Transaction
from hub.registry.approvalrules import approval as approving
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.bootstrapcredentials.service import CredentialTerms
from hub.registry.certificatesigningrequests import issuance, service as requests, submission
from hub.registry.managedclusters import service as clusters
from machinery import pki
from machinery.identity import AgentId, CertificateSubject, ClusterName, agent_subject
from machinery.meta.objects import Key, StoredObject
from machinery.runtime.clock import Clock, ManualClock
from tests.fakes.authority import WordIssuer
from tests.fakes.inline_store import InlineStore

OPERATOR = "ann"
LIFETIMES = Lifetimes()
EDGE = ClusterName("edge")
AGENT = AgentId("agent-1")


@dataclass
class Newcomer:
    """One cluster's side of registration, against a store in memory."""

    store: InlineStore
    issuer: WordIssuer = field(default_factory=WordIssuer)
    cluster: ClusterName = EDGE
    agent: AgentId = AGENT
    uid: str = "uid-1"
    key: bytes = field(default_factory=pki.generate_key)

    def bootstrap(self, **asked: Any) -> CertificateRecord:
        """A bootstrap credential's certificate, for any cluster name and any number of them by default."""
        record, _ = self.credential(**asked)
        (certificate,) = self.store.transact(lambda tx: tx.certificates.of_credential(record.id))
        return certificate

    def credential(self, *, public_key: bytes = b"", **asked: Any) -> tuple[CredentialRecord, object]:
        terms = CredentialTerms(**{"cluster": None, "uses": None, "lifetime": LIFETIMES.bootstrap, **asked})
        public_key = public_key or pki.public_key_of(pki.generate_key())
        return self.store.transact(credentials.create, terms, public_key, self.issuer, lifetimes=LIFETIMES, actor=OPERATOR)

    def request(self, subject: CertificateSubject | None = None, key: bytes | None = None) -> bytes:
        return pki.build_request(subject or agent_subject(self.cluster, self.agent), key or self.key)

    def submission(self, requester: CertificateRecord, **changed: Any) -> Submission:
        fields = {
            "cluster": self.cluster,
            "agent": self.agent,
            "request": self.request() if "request" not in changed else b"",
            "requester": requester,
            "cluster_uid": self.uid,
        }
        return Submission(**{**fields, **changed})

    def submit(self, requester: CertificateRecord, **changed: Any) -> str:
        return self.store.transact(submission.submit, self.submission(requester, **changed))

    def join(self, requester: CertificateRecord) -> None:
        joining = JoinRequest(self.cluster, self.uid, self.agent, credential=requester.credential)
        self.store.transact(clusters.ensure, joining, requester.user)

    def accept(self, *, accepted: bool = True) -> None:
        self.store.transact(set_accepted, self.cluster, accepted, OPERATOR)

    def approve(self, name: str) -> None:
        self.store.transact(lambda tx: requests.decide(tx, name, approve=True, reason="Test", message="ok", actor=OPERATOR))

    def deny(self, name: str) -> None:
        self.store.transact(lambda tx: requests.decide(tx, name, approve=False, reason="Test", message="no", actor=OPERATOR))

    def state(self, name: str) -> RequestState:
        return self.store.transact(requests.state, name)

    def issue(self, name: str) -> object:
        return self.store.transact(issuance.issue, name, self.issuer, LIFETIMES, "hub")

    def review(self, name: str, *globs: str) -> object:
        return self.store.transact(lambda tx: approving.review(tx, name, approving.rules_in(tx, globs), "hub"))

    def stored(self, name: str) -> StoredObject:
        found = self.store.transact(lambda tx: tx.objects.get(REQUESTS, Key("", name)))
        assert found is not None
        return found

    def certificate(self, purpose: Purpose = Purpose.AGENT) -> CertificateRecord:
        """The certificate of this cluster and purpose that was recorded last."""
        records = self.store.state.certificates.values()
        return [record for record in records if (record.cluster, record.purpose) == (self.cluster, purpose)][-1]

    def accepted(self) -> CertificateRecord:
        """Joins and is accepted; the certificate of its bootstrap credential."""
        requester = self.bootstrap()
        self.join(requester)
        self.accept()
        return requester

    def issued(self, requester: CertificateRecord, **changed: Any) -> str:
        """Submits a request that is approved and signed, if the signer allows it; its name."""
        name = self.submit(requester, **changed)
        self.approve(name)
        self.issue(name)
        return name

    def registered(self) -> CertificateRecord:
        """Goes the whole way; the agent's certificate."""
        self.issued(self.accepted())
        return self.certificate()


def set_accepted(tx: Transaction, name: ClusterName, accepted: bool, actor: str) -> object:  # noqa: FBT001 - the field's value
    stored = clusters.find(tx, name)
    return clusters.put_changed(tx, doc.with_spec(stored.document, hubAcceptsClient=accepted), stored, actor)


def change_cluster(
    store: InlineStore, change: Callable[[Any], dict[str, Any]], name: ClusterName = EDGE, actor: str = OPERATOR
) -> None:
    """Writes what this makes of the cluster's document."""

    def write(tx: Transaction) -> None:
        stored = clusters.find(tx, name)
        clusters.put(tx, change(stored.document), stored, actor)

    store.transact(write)


def fresh_store(clock: Clock | None = None) -> InlineStore:
    return InlineStore(clock or ManualClock())


def fresh_newcomer(clock: Clock | None = None) -> Newcomer:
    """A cluster on its way into an empty store."""
    return Newcomer(fresh_store(clock))
