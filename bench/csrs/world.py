"""A hub with clusters, credentials and a CA: the hub's own rules, services and issuer with a store in memory."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from bench.csrs.drafts import Keys
from hub.api import certificatesigningrequests as rules
from hub.api.certificates import CertificateRecord, Lifetimes, Purpose
from hub.api.certificatesigningrequests import AddOnRequest, Requester, RequestPhase, Submission
from hub.issuer.local import LocalIssuer
from hub.ports import Transaction
from hub.registry import certificates
from hub.registry.approvalrules import approval
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.certificatesigningrequests import credential_uses, issuance, service as requests, submission
from hub.registry.managedclusteraddons import service as addons
from hub.registry.recovery import recover
from machinery import pki
from machinery.errors import MusterError
from machinery.identity import (
    SIGNER,
    AddOnName,
    AgentId,
    CertificateSubject,
    ClusterName,
    SerialNumber,
    agent_id,
    bootstrap_user,
    cluster_name,
)
from machinery.runtime.clock import ManualClock
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import Newcomer

P = ParamSpec("P")
T = TypeVar("T")
EDGE, OTHER, NEW, TOKENS, GONE = map(ClusterName, ("edge", "other", "new", "tokens", "gone"))
AGENT, WORK, UID = AgentId("agent-1"), AddOnName("work"), "uid-of-"
LIFETIMES = Lifetimes()
POSTED, RECOVERY = "posted", "recovery"


@dataclass(frozen=True, slots=True)
class RequesterRecord:
    """A requester. `clusters`: it may get certificates for these clusters; empty: for all. `barred`: for none."""

    name: str
    record: CertificateRecord | None
    user: str
    groups: tuple[str, ...] = ()
    clusters: frozenset[str] = frozenset()
    barred: bool = False

    @property
    def extra(self) -> Mapping[str, tuple[str, ...]]:
        return {rules.SERIAL_EXTRA: (f"{self.record.serial:x}",)} if self.record else {}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request in the form in which it is submitted, over gRPC or to the Kubernetes API."""

    pem: bytes
    asker: RequesterRecord
    cluster: str
    agent: str
    uid: str
    labels: Mapping[str, str]
    duration: timedelta | None = None
    addon: AddOnRequest | None = None
    post: bool = False
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an attempt. `result`: type of the error, or the phase. `again`: whether a second issuance wrote data."""

    result: str
    request: Mapping[str, Any] = field(default_factory=dict)
    records: tuple[CertificateRecord, ...] = ()
    again: bool = False


class World:
    """A hub with clusters, credentials and a CA. Each attempt starts from the same state."""

    def __init__(self) -> None:
        self.keys = Keys()
        self.clock = ManualClock()
        self.store = InlineStore(self.clock)
        now = self.clock.now()
        key = pki.generate_key()
        self.authority = pki.create_authority(
            CertificateSubject("fuzz-ca"), key, pki.random_serial(), now - timedelta(days=2), now + timedelta(days=3650)
        )
        self.issuer = LocalIssuer(self.authority)
        self._settle()
        self._base = self.store.saved()

    def _settle(self) -> None:
        """Create clusters with their agents, an add-on, and requesters of all kinds."""
        unbound = self._credential(None, key=self.keys.credentials.spki)
        own = self._joined(EDGE, self.keys.own[0].pem, unbound)
        edge, recovery = own.certificate(), own.certificate(Purpose.RECOVERY)
        self.victim = self._joined(OTHER, self.keys.victims.pem, unbound).certificate()
        gone = self._joined(GONE, self.keys.revoked.pem, unbound).certificate()
        self._run(lambda tx: tx.certificates.revoke([gone.serial], tx.now, "Test"))
        registration = {"type": "kubeClient", "kubeClient": {"driver": "csr", "subject": {}}}
        addon = {"metadata": {"name": WORK, "namespace": EDGE}, "status": {"registrations": [registration]}}
        self._run(addons.put, addon, None, "ann")
        operator = self._run(certificates.admit_operator, "ann", self._spki(), self.issuer, LIFETIMES)
        revoked, spent = self._credential(NEW), self._credential(None, uses=1)
        self._run(lambda tx: credential_uses.admit(tx, spent.credential or unbound.credential, OTHER))  # type: ignore[arg-type]
        self._run(lambda tx: credentials.revoke(tx, revoked.credential))  # type: ignore[arg-type]
        token, _ = self._run(credentials.create_token, credentials.CredentialTerms(TOKENS, None, timedelta(hours=1)), "ann")
        self.askers = [
            RequesterRecord("agent", edge, edge.user, edge.groups, frozenset((EDGE,))),
            RequesterRecord("unbound credential", unbound, unbound.user, unbound.groups),
            RequesterRecord("bound credential", bound := self._credential(NEW), bound.user, bound.groups, frozenset((NEW,))),
            RequesterRecord("token", None, bootstrap_user(token.id), (), frozenset((TOKENS,))),
            RequesterRecord("operator", self._record(operator.serial), "ann", ("system:masters",)),
            RequesterRecord("user", None, "eve", ("system:authenticated",)),
            RequesterRecord(RECOVERY, recovery, recovery.user, (), frozenset((EDGE,))),
            RequesterRecord("revoked agent", self._record(gone.serial), gone.user, gone.groups, barred=True),
            RequesterRecord("revoked credential", self._record(revoked.serial), revoked.user, revoked.groups, barred=True),
            RequesterRecord("spent credential", spent, spent.user, spent.groups, frozenset((OTHER,))),
        ]

    def _run(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.store.transact(use_case, *args, **kwargs)

    def _spki(self) -> bytes:
        return pki.public_key_of(pki.generate_key())

    def _record(self, serial: SerialNumber) -> CertificateRecord:
        record = self._run(lambda tx: tx.certificates.by_serial(serial))
        if record is None:
            raise RuntimeError("an issued certificate has no record")
        return record

    def _credential(self, cluster: ClusterName | None, uses: int | None = None, key: bytes | None = None) -> CertificateRecord:
        terms, own = credentials.CredentialTerms(cluster, uses, LIFETIMES.bootstrap), key or self._spki()
        made, _ = self._run(lambda tx: credentials.create(tx, terms, own, self.issuer, lifetimes=LIFETIMES, actor="ann"))
        (record,) = self._run(lambda tx: tx.certificates.of_credential(made.id))
        return record

    def _joined(self, cluster: ClusterName, key: bytes, credential: CertificateRecord) -> Newcomer:
        newcomer = Newcomer(self.store, self.issuer, cluster, AGENT, UID + cluster, key)  # type: ignore[arg-type]  # any Issuer does
        newcomer.join(credential)
        newcomer.accept()
        newcomer.issued(credential)
        return newcomer

    def tried(self, attempt: Attempt) -> Outcome:
        """Submit, approve and issue one request. Refusals are results; other errors are raised."""
        self.store.restore(self._base)
        certificates.checked_request.cache_clear()
        try:
            name = self._posted(attempt) if attempt.post else self._submitted(attempt)
            self._run(lambda tx: approval.review(tx, name, approval.rules_in(tx, ("*",)), "hub"))
            if self._run(requests.state, name).phase is RequestPhase.PENDING:
                self._run(lambda tx: requests.decide(tx, name, approve=True, reason="R", message="m", actor="ann"))
            self._run(issuance.issue, name, self.issuer, LIFETIMES, "hub")
            request = self._run(requests.find, name)
            again = self._run(issuance.issue, name, self.issuer, LIFETIMES, "hub") is not None
            records = self._run(lambda tx: tuple(tx.certificates.of_request(request.uid)))
            return Outcome(str(self._run(requests.state, name).phase), request.document, records, again)
        except MusterError as error:
            return Outcome(type(error).__name__)

    def _submitted(self, attempt: Attempt) -> str:
        """Submit a request like the gRPC door or the Kubernetes API. Return its name."""
        record = attempt.asker.record
        if record is None:
            return self._posted(attempt)
        cluster, agent = cluster_name(attempt.cluster), agent_id(attempt.agent)
        asked = Submission(cluster, agent, attempt.pem, record, attempt.uid, attempt.duration, attempt.addon)
        if attempt.asker.name == RECOVERY:
            return self._run(recover, asked, unattended=True)
        return self._run(submission.submit, asked)

    def _posted(self, attempt: Attempt) -> str:
        asker = attempt.asker
        spec = {"request": b64encode(attempt.pem).decode(), "signerName": SIGNER, "usages": list(rules.USAGES)}
        document = {
            "metadata": {"name": POSTED, "labels": dict(attempt.labels)},
            "spec": {**spec, **attempt.spec},
            "status": {"certificate": "forged"},
        }
        self._run(requests.put, document, None, Requester(asker.user, asker.groups, extra=asker.extra))
        return POSTED
