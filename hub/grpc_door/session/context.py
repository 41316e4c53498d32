"""The parts that the servicers of the gRPC door share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from hub.access.attestations import Attestor
from hub.access.limits import AccessLimits
from hub.access.peers import Peers
from hub.api.certificateauthorities.authority import AuthorityRecord, Phase, signer_of
from hub.api.certificates import CertificateRecord
from hub.api.managedclusters.agent_annotations import RenewalOrder
from hub.audit import Auditor
from hub.grpc_door.errors import Context
from hub.grpc_door.gate import CallAttributes, CallCounts, Gate
from hub.grpc_door.session.acknowledgements import BeatRate, Deferred
from hub.grpc_door.session.changes import ChangeSubscriptions
from hub.grpc_door.session.drain import Age, Cordon
from hub.grpc_door.session.report_writer import Clocks
from hub.grpc_door.session.sessions import Sessions
from hub.grpc_door.session.trust_bundle_push import TrustBundlePush
from hub.heartbeat import BeatBuffer
from hub.ports import Store
from hub.ports.identities import Issuer
from machinery.errors import UnauthorizedError
from machinery.identity import HubId
from machinery.runtime.clock import Clock

CERTIFICATE = "x509_pem_cert"
RENEWALS_PER_SECOND = 20
"""Renewals per second by agents of one replica while a CA is Outgoing."""
SOONEST_RENEWAL = timedelta(seconds=10)


class AccountToken(Protocol):
    """Makes a token of the ServiceAccount `namespace`/`name` with this uid, valid from `begin` to `end`."""

    def __call__(self, namespace: str, name: str, uid: str, *, begin: datetime, end: datetime) -> str: ...


@dataclass(frozen=True, slots=True)
class DoorContext:
    """The parts that the servicers of the gRPC door share. A process has one of each."""

    hub_id: HubId
    issuer: Issuer
    """The issuer, whose trust bundle changes during a CA rotation."""
    store: Store
    clock: Clock
    peers: Peers
    beats: BeatBuffer
    feed: ChangeSubscriptions
    sessions: Sessions
    gate: Gate
    auditor: Auditor
    limits: AccessLimits
    beat_rate: BeatRate
    default_lease_duration: timedelta
    clocks: Clocks
    cordon: Cordon
    """The cordon of this replica."""
    age: Age
    attributes: CallAttributes
    tokens: AccountToken
    """Makes add-on tokens."""
    unattended_recovery: bool
    """Whether a recovery certificate is sufficient for recovery without approval by an operator."""
    join_labels: tuple[str, ...]
    """Labels that an agent may set when it joins (`hub.api.managedclusters.admission.permitted_join_labels`)."""
    standby_interval: timedelta
    """The interval of StandBy calls of agents on standby."""
    authorities: Callable[[], Sequence[AuthorityRecord]]
    """Returns the hub's CAs in their current phases."""
    attestor: Attestor
    """Verifies attestation tokens."""
    trust_push: TrustBundlePush
    """Records which CAs agents trust, and pushes the trust bundle."""
    calls: CallCounts = field(default_factory=CallCounts)
    deferred: Deferred = field(default_factory=Deferred)

    def is_outgoing(self, record: CertificateRecord) -> bool:
        """Whether the CA that signed the certificate is Outgoing: it no longer signs, and remains until no agent needs it."""
        signer = signer_of(record.signed_by, self.authorities())
        return signer is not None and signer.phase is Phase.OUTGOING

    def renew_within(self, record: CertificateRecord, order: RenewalOrder | None, now: datetime) -> timedelta | None:
        """Returns the time within which the certificate has to be renewed early; None: no renewal is requested.

        An order of an operator or an Outgoing CA requests a renewal.
        """
        limits = [order.left(now)] if order is not None and order.asks(record.issued_at) else []
        if self.is_outgoing(record):
            limits.append(max(SOONEST_RENEWAL, timedelta(seconds=len(self.sessions) / RENEWALS_PER_SECOND)))
        return min(limits, default=None)

    @staticmethod
    def shown(context: Context) -> bytes:
        """Returns the peer's certificate (PEM) that TLS has verified. Raises UnauthorizedError if there is none."""
        shown = context.auth_context().get(CERTIFICATE)
        certificate = next(iter(shown), None) if shown else None
        if certificate is None:
            raise UnauthorizedError("the peer has shown no certificate")
        return certificate
