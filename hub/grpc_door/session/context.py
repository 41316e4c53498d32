"""What the servicers of this door share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from hub.access import AccessLimits, Peers
from hub.access.attestations import Attestor
from hub.api.certificateauthorities.authority import AuthorityRecord
from hub.api.certificates.certificate import CertificateRecord
from hub.audit import Auditor
from hub.grpc_door.addon_tokens import AccountToken
from hub.grpc_door.calls.counts import CallCounts
from hub.grpc_door.calls.gate import Gate
from hub.grpc_door.changes.feed import ChangeSubscriptions
from hub.grpc_door.errors import Context
from hub.grpc_door.session.acknowledgements import Deferred
from hub.grpc_door.session.clock_reports import Clocks
from hub.grpc_door.session.cordon import Cordon
from hub.grpc_door.session.heartbeat_interval import Tempo
from hub.grpc_door.session.max_connection_age import Age
from hub.grpc_door.session.sessions import Sessions
from hub.grpc_door.session.trust_bundle_push import TrustBundlePush
from hub.heartbeat import BeatBuffer
from hub.ports import Issuer, Store
from machinery.errors import UnauthorizedError
from machinery.identity import HubId
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import Clock

CERTIFICATE = "x509_pem_cert"


@dataclass(frozen=True, slots=True)
class HubIdentity:
    """Who this hub is, as peers are told."""

    hub_id: HubId
    version: str
    issuer: Issuer

    @property
    def trust_bundle(self) -> bytes:
        """PEM of what peers should trust now: it changes when the hub's CA is rotated."""
        return self.issuer.trust_bundle


@dataclass(frozen=True, slots=True)
class DoorContext:
    """The door's parts; one of each per process."""

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
    tempo: Tempo
    default_lease_duration: timedelta
    calls: CallCounts = field(default_factory=CallCounts)
    clocks: Clocks | None = None
    """None: nobody looks at agents' clocks."""
    cordon: Cordon = field(default_factory=Cordon)
    """Whether this replica takes sessions."""
    deferred: Deferred = field(default_factory=Deferred)
    age: Age = field(default_factory=Age)
    group_suffix: str = GROUP_SUFFIX
    tokens: AccountToken | None = None
    """Makes the tokens of add-ons; None: this door issues none."""
    unattended_recovery: bool = True
    """Whether an agent comes back with its recovery certificate without a person."""
    join_labels: tuple[str, ...] = ()
    """What an agent may set when it joins (`hub.api.managedclusters.join_labels`)."""
    standby_interval: timedelta = timedelta(minutes=10)
    """How often an agent in reserve says that it is."""
    authorities: Callable[[], Sequence[AuthorityRecord]] = tuple
    """The hub's CAs, as they stand now."""
    attestor: Attestor | None = None
    """Checks which cluster a newcomer is; None: nobody does, and what demands it lets nobody in."""
    trusting: TrustBundlePush | None = None
    """Keeps what agents trust, and pushes the bundle; None: nobody does."""

    async def former(self, context: Context) -> CertificateRecord:
        """The record of the peer's certificate, which may be revoked or have ended: it opens nothing, but tells who had it.

        Raises UnauthorizedError, UnavailableError.
        """
        return await self.peers.former(self.shown(context))

    @staticmethod
    def shown(context: Context) -> bytes:
        """The peer's certificate (PEM), as TLS has verified it. Raises UnauthorizedError: it has shown none."""
        shown = context.auth_context().get(CERTIFICATE)
        certificate = next(iter(shown), None) if shown else None
        if certificate is None:
            raise UnauthorizedError("the peer has shown no certificate")
        return certificate
