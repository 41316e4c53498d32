"""The parts that the servicers of this door share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from hub.access import AccessLimits, Peers
from hub.access.attestations import Attestor
from hub.api.certificateauthorities.authority import AuthorityRecord
from hub.audit import Auditor
from hub.grpc_door.calls import CallCounts, Gate
from hub.grpc_door.errors import Context
from hub.grpc_door.session.acknowledgements import BeatRate, Deferred
from hub.grpc_door.session.changes import ChangeSubscriptions
from hub.grpc_door.session.clock_reports import Clocks
from hub.grpc_door.session.drain import Age, Cordon
from hub.grpc_door.session.sessions import Sessions
from hub.grpc_door.session.trust_bundle_push import TrustBundlePush
from hub.heartbeat import BeatBuffer
from hub.ports import Issuer, Store
from machinery.errors import UnauthorizedError
from machinery.identity import HubId
from machinery.runtime.clock import Clock

CERTIFICATE = "x509_pem_cert"


class AccountToken(Protocol):
    """Makes a token of the ServiceAccount `namespace`/`name` with this uid."""

    def __call__(self, namespace: str, name: str, uid: str, *, begin: datetime, end: datetime) -> str: ...


@dataclass(frozen=True, slots=True)
class HubIdentity:
    """The hub's identity, as peers receive it."""

    hub_id: HubId
    version: str
    issuer: Issuer

    @property
    def trust_bundle(self) -> bytes:
        """The current CA bundle for peers, in PEM; it changes during a CA rotation."""
        return self.issuer.trust_bundle


@dataclass(frozen=True, slots=True)
class DoorContext:
    """The parts of the door; one of each per process."""

    hub: HubIdentity
    store: Store
    clock: Clock
    peers: Peers
    beats: BeatBuffer
    feed: ChangeSubscriptions
    sessions: Sessions
    gate: Gate
    auditor: Auditor
    limits: AccessLimits
    tempo: BeatRate
    default_lease_duration: timedelta
    clocks: Clocks
    cordon: Cordon
    """Whether this replica takes sessions."""
    age: Age
    group_suffix: str
    tokens: AccountToken
    """Makes add-on tokens."""
    unattended_recovery: bool
    """Whether a recovery certificate is sufficient for recovery without approval by an operator."""
    join_labels: tuple[str, ...]
    """Labels that an agent may set when it joins (`hub.api.managedclusters.join_labels`)."""
    standby_interval: timedelta
    """The interval of StandBy calls of agents in reserve."""
    authorities: Callable[[], Sequence[AuthorityRecord]]
    """Returns the hub's CAs in their current phases."""
    attestor: Attestor
    """Verifies attestation tokens."""
    trusting: TrustBundlePush
    """Records which CAs agents trust, and pushes the trust bundle."""
    calls: CallCounts = field(default_factory=CallCounts)
    deferred: Deferred = field(default_factory=Deferred)

    @staticmethod
    def shown(context: Context) -> bytes:
        """Returns the peer's certificate (PEM) that TLS has verified. Raises UnauthorizedError if there is none."""
        shown = context.auth_context().get(CERTIFICATE)
        certificate = next(iter(shown), None) if shown else None
        if certificate is None:
            raise UnauthorizedError("the peer has shown no certificate")
        return certificate
