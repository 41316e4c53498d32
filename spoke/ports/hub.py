"""The port to a hub (ADR D2), implemented by `spoke.transports.grpc` and by `spoke.transports.kubernetes`."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Protocol

from machinery.client.kubeconfig import BearerToken
from machinery.errors import UnavailableError
from machinery.identity import AddOnName, ClusterName, HubId
from machinery.meta.conditions import Condition
from machinery.product import GROUP_SUFFIX
from spoke.domain.addon import AddOn, AddOnToken
from spoke.domain.hubs import HubAcceptance, ListedHub
from spoke.domain.names import AgentIdentity
from spoke.domain.next_step import SessionLoss
from spoke.domain.report import AgentEvent, ClusterReport, ExternalEndpoint, ManagedNamespace
from spoke.domain.route import Driver
from spoke.domain.schedule import RequestedRenewal


class HubLostError(UnavailableError):
    """The session has ended; `loss` is the reason as a value, the message the details."""

    def __init__(
        self, message: str, loss: SessionLoss = SessionLoss.UNREACHABLE, *, retry_after: timedelta | None = None
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.loss = loss

    def fresh_copy(self) -> "HubLostError":
        """Return a copy that another function can raise."""
        return HubLostError(self.message, self.loss, retry_after=self.retry_after)


class SessionEpochError(HubLostError):
    """The hub has stored a higher `epoch` of this cluster than the session's epoch."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message, SessionLoss.STALE)
        self.epoch = epoch

    def fresh_copy(self) -> HubLostError:
        return SessionEpochError(self.message, self.epoch)


NONE: Mapping[str, str] = MappingProxyType({})


class TransportFeature(Enum):
    """Features that only some transports have. The client declares them; they are never derived from the driver's name."""

    HUB_ID = "the hub reports its id"
    ACKNOWLEDGED_BEATS = "a beat is acknowledged by itself, so that silence is noticed within seconds"
    ONE_SESSION = "the hub knows of the session, and a newer one of the cluster supersedes it"
    DRAIN = "the hub asks its agents to leave before it goes"
    TRUST = "the hub sends its CAs in the session, before they change"
    SEVERAL_HUBS = "the hub keeps the epochs of its agents, and knows which of them only stand by"


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Address of a hub and the CA (PEM) that verifies it."""

    target: str
    """`host:port` of the gRPC door, or the URL of the Kubernetes API, depending on the driver."""
    ca: bytes
    driver: Driver = Driver.GRPC
    proxy: str = field(default="", repr=False)
    """URL of the proxy to use; may contain a password."""
    tls_server_name: str = ""
    """The name that the API's certificate must have; empty: the name in the target."""
    group_suffix: str = GROUP_SUFFIX


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client certificate (PEM, leaf first) and its key (PEM, not in repr); or a bearer token if the driver supports one."""

    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    token: BearerToken | None = None
    recovers: bool = False
    """Whether this is a recovery certificate, with which a hub only issues another certificate."""


@dataclass(frozen=True, slots=True)
class HubInfo:
    """Identity of the hub and its time when it answered. `hub_id` is empty when the hub reports none."""

    hub_id: HubId
    time: datetime
    version: str
    trust_bundle: bytes
    attestation_audience: str = ""
    """Required audience of the attestation token at a first registration; empty: no token needed."""


@dataclass(frozen=True, slots=True)
class RegistrationState:
    created: bool
    accepted: bool
    uid: str


@dataclass(frozen=True, slots=True)
class CSRState:
    """State of a certificate signing request, as the hub reports it."""

    state: str
    """`pending`, `approved`, `denied`, `failed` or `issued`."""
    reason: str = ""
    message: str = ""
    certificate: bytes = b""
    recovery_certificate: bytes = b""
    hub_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Desired:
    """The state that the hub wants for this cluster."""

    accepted: bool
    lease_duration: timedelta
    addons: tuple[AddOn, ...] = ()
    deleting: bool = False
    addons_known: bool = True
    """False: the hub's add-ons cannot be read now; this does not mean that there are none."""
    renewal: RequestedRenewal | None = None
    """Certificates to renew early."""
    namespaces: tuple[ManagedNamespace, ...] = ()
    """Namespaces that the hub's cluster sets want on this cluster."""
    second_agent: str = ""
    """The hub's message about another agent of this cluster that it refused recently; empty: none."""


@dataclass(frozen=True, slots=True)
class Drain:
    reconnect_after: timedelta
    reason: str
    target: HubId | None = None
    """The hub of the agent's list to move to; None: another replica of this hub."""


@dataclass(frozen=True, slots=True)
class SessionHello:
    """What an agent reports when it opens a session."""

    cluster_uid: str
    epoch: int = 0
    """Increases with each change of owner. A hub refuses sessions with a lower epoch than it has stored. 0: none is stored."""
    hubs: tuple[ListedHub, ...] = ()
    trusted: tuple[str, ...] = ()
    """The CAs with which the agent verifies the hub: hex SHA-256 of the DER of each."""


@dataclass(frozen=True, slots=True)
class StandbyAnswer:
    accepted: bool
    """Whether the hub would accept a session now."""
    epoch: int
    """The highest epoch that the hub has stored for this cluster."""
    time: datetime
    trust_bundle: bytes
    again_after: timedelta | None = None
    """Time until the hub wants the next call; None: not stated."""
    renew_within: timedelta | None = None
    """If present, the agent must renew the certificate early, at a random moment within this time."""


class HubSession(Protocol):
    """One open session with a hub. Every method raises HubLostError once the session has ended."""

    @property
    def beat_interval(self) -> timedelta:
        """The interval that the hub last requested."""

    @property
    def hub_time_offset(self) -> timedelta:
        """Lead of the hub's clock over the agent's clock, measured at Welcome."""

    async def beat(self, *, available: bool | None) -> None:
        """Send a beat. Return when the hub has accepted it. With ACKNOWLEDGED_BEATS the beat is then durable."""

    async def report(self, report: ClusterReport) -> int:
        """Send a status report. Return the revision at which it is durable. Raises the hub's refusal."""

    async def report_addon(self, addon: AddOnName, conditions: Sequence[Condition], *, driver: str = "") -> int:
        """Send an add-on's conditions. Return the revision at which they are durable.

        `driver` (`csr` or `token`) is recorded as the way in which the add-on authenticates at the hub.
        """

    async def send_event(self, news: AgentEvent) -> None:
        """Send an event for operators to the hub. Delivery is not guaranteed; a hub keeps a limited number."""

    def desired(self) -> AsyncGenerator[Desired, None]:
        """Yield the state that the hub wants: the present state now, then every change."""

    async def ended(self) -> Exception:
        """Return the reason when the session ends."""

    async def drained(self) -> Drain:
        """Return each time the hub asks this agent to leave (with DRAIN; otherwise never). The session continues meanwhile."""

    async def trust_bundle(self) -> bytes:
        """Return each new bundle of CAs (PEM) with which the hub wants to be verified (with TRUST; otherwise never)."""
        await asyncio.Event().wait()
        raise AssertionError

    async def trust_installed(self, trusted: Sequence[str]) -> None:
        """Report the CAs with which the agent now verifies the hub, as in SessionHello. Without TRUST it does nothing."""
        del trusted

    async def report_hub_list(self, hubs: Sequence[ListedHub]) -> None:
        """Send the agent's whole hub list (with SEVERAL_HUBS; otherwise nothing)."""

    async def farewell(self, hub_id: HubId, epoch: int) -> None:
        """End the session; with SEVERAL_HUBS first name the hub that the agent goes to. Bounded in time: the hub may hang."""


class HubClient(Protocol):
    """One hub, with one credential. Raises the errors of machinery.errors; UnavailableError when the hub cannot be reached."""

    @property
    def features(self) -> frozenset[TransportFeature]: ...

    async def info(self) -> HubInfo: ...

    def bring(self, attestation: str) -> None:
        """Attach an attestation token to the following calls. No effect if the hub accepts no such token."""
        del attestation

    async def ensure_cluster(
        self,
        agent: AgentIdentity,
        *,
        endpoints: Sequence[ExternalEndpoint],
        annotations: Mapping[str, str],
        labels: Mapping[str, str] = NONE,
    ) -> RegistrationState:
        """Create or find the ManagedCluster. `labels` apply only to a new one, as far as the hub allows them."""

    async def submit_request(
        self, agent: AgentIdentity, request: bytes, *, duration: timedelta | None, addon: tuple[AddOnName, str] | None = None
    ) -> str:
        """Submit a CSR (PEM) and return its name. The same bytes return the same name again."""

    def follow_request(self, name: str) -> AsyncGenerator[CSRState, None]:
        """Yield the state at once and at every change, until the final decision.

        Raises NotFoundError or ForbiddenError, depending on the hub, for a request that we may not see or that does not exist.
        """

    async def addon_token(self, cluster: ClusterName, addon: AddOnName, duration: timedelta) -> AddOnToken:
        """Issue a token of the ServiceAccount with which an add-on authenticates at the hub.

        Raises ConflictError while the ServiceAccount is not ready, MethodNotAllowedError when the hub issues none.
        """

    def session(self, greeting: SessionHello) -> AbstractAsyncContextManager[HubSession]:
        """Open the session; entering returns after Welcome. Raises HubLostError; SessionEpochError for an epoch too low."""

    async def stand_by(
        self, agent: AgentIdentity, *, owner: HubId | None, epoch: int, trusted: Sequence[str] = ()
    ) -> StandbyAnswer:
        """Report that `owner` has the session, and which CAs (`trusted`, as in SessionHello) verify this hub.

        Raises MethodNotAllowedError when the hub does not implement it.
        """

    async def leave(self, agent: AgentIdentity) -> bool:
        """Leave the hub permanently. Return whether the hub had the cluster. Raises MethodNotAllowedError if unsupported."""

    async def acceptance(self, cluster: ClusterName) -> HubAcceptance:
        """Read whether the hub has accepted the cluster of this credential. Changes nothing."""

    async def withdraw(self, agent: AgentIdentity) -> bool:
        """Withdraw the cluster that this bootstrap credential registered. False: it stays, because an operator accepted it.

        Raises MethodNotAllowedError or ForbiddenError when the hub does not allow it.
        """

    async def close(self) -> None: ...


class Dial(Protocol):
    """Creates the client of one hub with one credential; it sends nothing before its first call."""

    def __call__(self, address: HubAddress, identity: ClientIdentity) -> HubClient: ...
