"""The port to a hub (ADR 0001), implemented by `spoke.transports.grpc` and by `spoke.transports.kubernetes`."""

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
    """The session has ended. `loss` is the reason; the message contains details."""

    def __init__(
        self, message: str, loss: SessionLoss = SessionLoss.UNREACHABLE, *, retry_after: timedelta | None = None
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.loss = loss

    def fresh_copy(self) -> "HubLostError":
        """Return a copy, so that several callers can raise the error without sharing its traceback."""
        return HubLostError(self.message, self.loss, retry_after=self.retry_after)


class SessionEpochError(HubLostError):
    """The hub has stored an `epoch` of this cluster that is higher than the session's epoch."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message, SessionLoss.STALE)
        self.epoch = epoch

    def fresh_copy(self) -> HubLostError:
        return SessionEpochError(self.message, self.epoch)


NONE: Mapping[str, str] = MappingProxyType({})


class TransportFeature(Enum):
    """Features that only some transports have. Each client declares its features; the driver's name does not imply any."""

    HUB_ID = "the hub reports its id"
    ACKNOWLEDGED_BEATS = "the hub acknowledges each beat, so that the agent detects a silent hub within seconds"
    ONE_SESSION = "the hub records the session, and ends it when the cluster opens a newer one"
    DRAIN = "the hub asks its agents to leave before it stops"
    TRUST = "the hub sends its CAs in the session before they change"
    SEVERAL_HUBS = "the hub stores the epochs of its agents, and knows which agents have standby registrations"


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
    """The name that the API server's certificate must contain; empty: the host name in `target`."""
    group_suffix: str = GROUP_SUFFIX


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client certificate (PEM, leaf first) with its key (PEM), or a bearer token if the driver supports tokens."""

    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    token: BearerToken | None = None
    recovers: bool = False
    """Whether this is a recovery certificate, which the hub accepts only to issue another certificate."""


@dataclass(frozen=True, slots=True)
class HubInfo:
    """Identity of the hub, and the hub's time when it answered. `hub_id` is empty if the hub reports none."""

    hub_id: HubId
    time: datetime
    version: str
    trust_bundle: bytes
    attestation_audience: str = ""
    """Audience of the attestation token that a first registration needs; empty if it needs no token."""


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
    """False: the hub's add-ons cannot be read now, so `addons` is empty although the cluster may have add-ons."""
    renewal: RequestedRenewal | None = None
    """The hub's request to renew certificates early."""
    namespaces: tuple[ManagedNamespace, ...] = ()
    """Namespaces that the hub's cluster sets want on this cluster."""
    second_agent: str = ""
    """The hub's message that it recently refused another agent of this cluster; empty: none."""


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
    """Increases with each change of owner. A hub refuses a session whose epoch is lower than its stored epoch. 0: no epoch."""
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
    """One open session with a hub. After its end, `desired` and all methods that send, but not `farewell`, raise HubLostError.

    Names in capitals, such as DRAIN, are features of the transport (`TransportFeature`).
    """

    @property
    def beat_interval(self) -> timedelta:
        """The interval between beats that the hub last requested."""

    @property
    def hub_time_offset(self) -> timedelta:
        """How far the hub's clock is ahead of the agent's clock, as last measured."""

    async def beat(self, *, available: bool | None) -> None:
        """Send a beat and wait until the hub has accepted it. With ACKNOWLEDGED_BEATS, the hub has also stored it."""

    async def report(self, report: ClusterReport) -> int:
        """Send a status report. Return the revision at which the hub has stored it. Raises an error if the hub refuses it."""

    async def report_addon(self, addon: AddOnName, conditions: Sequence[Condition], *, driver: str = "") -> int:
        """Send an add-on's conditions. Return the revision at which the hub has stored them.

        `driver`: how the add-on authenticates at the hub (`csr` or `token`), which the hub stores; empty: not reported.
        """

    async def send_event(self, news: AgentEvent) -> None:
        """Send an Event for operators to the hub. Delivery is not guaranteed, and a hub keeps a limited number."""

    def desired(self) -> AsyncGenerator[Desired, None]:
        """Yield the state that the hub wants: the present state now, then every change."""

    async def ended(self) -> Exception:
        """Wait until the session ends. Return the reason."""

    async def drained(self) -> Drain:
        """Wait until the hub asks the agent to leave this replica, or to move to another hub. The session continues.

        Without DRAIN, it never returns.
        """

    async def trust_bundle(self) -> bytes:
        """Wait for the next bundle of CAs (PEM) by which agents must verify the hub. Without TRUST, it never returns."""
        await asyncio.Event().wait()
        raise AssertionError

    async def trust_installed(self, trusted: Sequence[str]) -> None:
        """Report the CAs that now verify the hub, as in SessionHello. Without TRUST, it does nothing."""
        del trusted

    async def report_hub_list(self, hubs: Sequence[ListedHub]) -> None:
        """Send the agent's whole hub list. Without SEVERAL_HUBS, it does nothing."""

    async def farewell(self, hub_id: HubId, epoch: int) -> None:
        """End the session. With SEVERAL_HUBS, first report the next owner, `hub_id`, with its `epoch`. The time is bounded."""


class HubClient(Protocol):
    """Client of a hub with a credential. Calls raise errors of machinery.errors: UnavailableError if the hub is unreachable."""

    @property
    def features(self) -> frozenset[TransportFeature]: ...

    async def info(self) -> HubInfo: ...

    def bring(self, attestation: str) -> None:
        """Attach an attestation token to the following calls. No effect if the transport does not support attestation."""
        del attestation

    async def ensure_cluster(
        self,
        agent: AgentIdentity,
        *,
        endpoints: Sequence[ExternalEndpoint],
        annotations: Mapping[str, str],
        labels: Mapping[str, str] = NONE,
    ) -> RegistrationState:
        """Create or find the agent's ManagedCluster. A new ManagedCluster gets those `labels` that the hub allows."""

    async def submit_request(
        self, agent: AgentIdentity, request: bytes, *, duration: timedelta | None, addon: tuple[AddOnName, str] | None = None
    ) -> str:
        """Submit the CSR `request` (PEM). Return its name at the hub; the same bytes always get the same name.

        `addon`: the add-on and the signer of the certificate; None: the certificate is for the agent.
        """

    def follow_request(self, name: str) -> AsyncGenerator[CSRState, None]:
        """Yield the state of the request `name` now and after every change, until the final decision.

        For a missing request, or a request that the agent may not read, it raises NotFoundError or ForbiddenError, depending on
        the hub.
        """

    async def addon_token(self, cluster: ClusterName, addon: AddOnName, duration: timedelta) -> AddOnToken:
        """Return a new token of the ServiceAccount with which an add-on authenticates at the hub.

        Raises ConflictError while the ServiceAccount is not ready, MethodNotAllowedError if the hub does not issue tokens.
        """

    def session(self, greeting: SessionHello) -> AbstractAsyncContextManager[HubSession]:
        """Open a session for the time of the block. Raises HubLostError; SessionEpochError if the epoch is too low."""

    async def stand_by(
        self, agent: AgentIdentity, *, owner: HubId | None, epoch: int, trusted: Sequence[str] = ()
    ) -> StandbyAnswer:
        """Report that `owner` has the session, and which CAs (`trusted`, as in SessionHello) verify this hub.

        Return the hub's answer. Raises MethodNotAllowedError if the hub does not implement StandBy.
        """

    async def leave(self, agent: AgentIdentity) -> bool:
        """Leave the hub permanently. Return whether the hub knew the cluster. Raises MethodNotAllowedError if not supported."""

    async def acceptance(self, cluster: ClusterName) -> HubAcceptance:
        """Read whether the hub has accepted the cluster of this credential. It changes nothing."""

    async def withdraw(self, agent: AgentIdentity) -> bool:
        """Withdraw the cluster that this bootstrap credential has registered. Return whether it was withdrawn.

        False: the cluster stays, because it was accepted or an agent has a certificate. Raises MethodNotAllowedError or
        ForbiddenError if the hub does not allow the call.
        """

    async def close(self) -> None: ...


class Dial(Protocol):
    """Creates the client of one hub with one credential. The client sends nothing before its first call."""

    def __call__(self, address: HubAddress, identity: ClientIdentity) -> HubClient: ...
