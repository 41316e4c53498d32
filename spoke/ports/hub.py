"""The port to a hub (D2), implemented by `spoke.transports.grpc` and by `spoke.transports.kubernetes`."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from types import MappingProxyType
from typing import Protocol

from machinery.client.kubeconfig import BearerToken
from machinery.identity import AddOnName, AgentId, ClusterName, HubId
from machinery.meta.conditions import Condition
from machinery.product import GROUP_SUFFIX
from spoke.domain.addon import AddOn
from spoke.domain.event import AgentEvent
from spoke.domain.hubs import ListedHub
from spoke.domain.namespace import ManagedNamespace
from spoke.domain.renewal import RequestedRenewal
from spoke.domain.report import ClusterReport, ExternalEndpoint
from spoke.domain.route import Driver

NONE: Mapping[str, str] = MappingProxyType({})


class Capability(Enum):
    """What not every way to talk to a hub has. Declared by the client, never guessed from the driver's name."""

    HUB_ID = "the hub tells its id"
    ACKNOWLEDGED_BEATS = "a beat is acknowledged by itself, so that silence is noticed within seconds"
    ONE_SESSION = "the hub knows of the session, and a newer one of the cluster supersedes it"
    DRAIN = "the hub asks its agents to leave before it goes"
    TRUST = "the hub tells of its CAs in the session, before they change"
    SEVERAL_HUBS = "the hub keeps the epochs of its agents, and knows which of them only stand by"


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Where a hub is, and which CA (PEM) vouches for it."""

    target: str
    """`host:port` of the gRPC door, or the URL of the Kubernetes API, as the driver has it."""
    ca: bytes
    driver: Driver = Driver.GRPC
    proxy: str = field(default="", repr=False)
    """URL of the proxy to go through; may hold a password."""
    tls_server_name: str = ""
    """The name that the API's certificate must have; empty: that of the target."""
    group_suffix: str = GROUP_SUFFIX


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client certificate (PEM, leaf first) and its key (PEM, never shown); or a bearer token where the driver takes one."""

    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    token: BearerToken | None = None


@dataclass(frozen=True, slots=True)
class HubInfo:
    """Who the hub is, and its time when it answered. `hub_id` is empty where the hub tells none."""

    hub_id: HubId
    time: datetime
    version: str
    trust_bundle: bytes
    attestation_audience: str = ""
    """For whom a token of this cluster must be that a first registration brings; empty: it needs none."""


class HubAcceptance(Enum):
    """Whether an operator of a hub accepted this cluster. DENIED: accepted before; UNKNOWN: the hub does not report it."""

    UNKNOWN = auto()
    WAITING = auto()
    ACCEPTED = auto()
    DENIED = auto()


@dataclass(frozen=True, slots=True)
class RegistrationState:
    created: bool
    accepted: bool
    uid: str


@dataclass(frozen=True, slots=True)
class CSRState:
    """State of a certificate signing request, as the hub tells it."""

    state: str
    """`pending`, `approved`, `denied`, `failed` or `issued`."""
    reason: str = ""
    message: str = ""
    certificate: bytes = b""
    recovery_certificate: bytes = b""
    hub_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Desired:
    """What the hub wants of this cluster."""

    accepted: bool
    lease_duration: timedelta
    addons: tuple[AddOn, ...] = ()
    deleting: bool = False
    revision: int = 0
    addons_known: bool = True
    """False: the hub's add-ons cannot be seen now; that is no word that there are none."""
    renewal: RequestedRenewal | None = None
    """Certificates that are to be renewed ahead of their time."""
    namespaces: tuple[ManagedNamespace, ...] = ()
    """What the cluster sets of the hub want to have on this cluster."""
    second_agent: str = ""
    """What the hub says of another agent of this cluster that it refused a short while ago; "": there was none."""


@dataclass(frozen=True, slots=True)
class Drain:
    reconnect_after: timedelta
    reason: str
    target: HubId | None = None
    """The hub of the agent's list that it is asked to go to; None: another replica of this one."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What an agent says of itself when it opens a session."""

    cluster_uid: str
    epoch: int = 0
    """The order of its changes of hub; a hub takes no session of a lower one than it has heard of. 0: none is kept."""
    hubs: tuple[ListedHub, ...] = ()
    trusted: tuple[str, ...] = ()
    """The CAs by which the hub is known: hex SHA-256 of the DER of each."""


@dataclass(frozen=True, slots=True)
class StandingBy:
    """What a hub answers to an agent that stands by."""

    accepted: bool
    """Whether it would take a session now."""
    epoch: int
    """The highest that it has heard of from this cluster."""
    time: datetime
    trust_bundle: bytes
    again_after: timedelta | None = None
    """When it would like to be told again; None: it does not say."""
    renew_within: timedelta | None = None
    """Present: the certificate is to be renewed ahead of its time, at a random moment within this."""


@dataclass(frozen=True, slots=True)
class AddOnToken:
    """A ServiceAccount's token, and until when it is good by the hub's clock."""

    token: str = field(repr=False)
    expires_at: datetime


class HubSession(Protocol):
    """One live session with a hub. Every method raises HubLostError once the session has ended."""

    @property
    def beat_interval(self) -> timedelta:
        """What the hub last asked for."""

    @property
    def hub_time_offset(self) -> timedelta:
        """How far the hub's clock is ahead of ours, as learned at Welcome."""

    async def beat(self, *, available: bool | None) -> None:
        """Sends a beat; returns when the hub has taken it: with ACKNOWLEDGED_BEATS it is durable then."""

    async def report(self, report: ClusterReport) -> int:
        """Sends a status report; returns the revision at which it is durable. Raises the hub's refusal."""

    async def report_addon(self, addon: AddOnName, conditions: Sequence[Condition], *, driver: str = "") -> int:
        """Sends an add-on's conditions; returns the revision at which they are durable.

        `driver`: `csr` or `token`, to be noted as how it identifies itself at the hub.
        """

    async def tell(self, news: AgentEvent) -> None:
        """Tells people at the hub. A hub keeps only so many news, and none has to arrive."""

    def desired(self) -> AsyncGenerator[Desired, None]:
        """What the hub wants: the present state at once, then every change."""

    async def ended(self) -> Exception:
        """Returns the reason when the session ends."""

    async def drained(self) -> Drain:
        """Returns when the hub asks this agent to leave, each time (with DRAIN; never else); the session goes on meanwhile."""

    async def trust_bundle(self) -> bytes:
        """Returns when the hub tells by which CAs (PEM) it wants to be known, each time (with TRUST; never else)."""
        await asyncio.Event().wait()
        raise AssertionError

    async def trust_installed(self, trusted: Sequence[str]) -> None:
        """Tells by which CAs the hub is known from now on, as in the Greeting; without TRUST it does nothing."""
        del trusted

    async def tell_hubs(self, hubs: Sequence[ListedHub]) -> None:
        """With SEVERAL_HUBS tells the hub the agent's whole list; else it does nothing."""

    async def farewell(self, hub_id: HubId, epoch: int) -> None:
        """Ends the session; with SEVERAL_HUBS its last words are where the agent goes. Bounded: a hub may be past hearing."""


class HubClient(Protocol):
    """One hub, with one credential. Errors: the tree of machinery.errors, UnavailableError when it cannot be reached."""

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    async def info(self) -> HubInfo: ...

    def bring(self, attestation: str) -> None:
        """Has what follows carry a token of this cluster, as proof which one it is. Without use where a hub takes none."""
        del attestation

    async def ensure_cluster(
        self,
        cluster: ClusterName,
        agent: AgentId,
        cluster_uid: str,
        *,
        endpoints: Sequence[ExternalEndpoint],
        annotations: Mapping[str, str],
        labels: Mapping[str, str] = NONE,
    ) -> RegistrationState:
        """Makes or finds the ManagedCluster. `labels` are for one that is made, and as many of them as the hub allows."""

    async def submit_request(
        self,
        cluster: ClusterName,
        agent: AgentId,
        cluster_uid: str,
        request: bytes,
        *,
        duration: timedelta | None,
        addon: tuple[AddOnName, str] | None = None,
    ) -> str:
        """Submits a CSR (PEM) and returns its name; the same bytes again return the same name."""

    def follow_request(self, name: str) -> AsyncGenerator[CSRState, None]:
        """The state at once and at every change, until it is decided for good.

        Raises NotFoundError or ForbiddenError, as the hub has it, for a request that is not there for us.
        """

    async def addon_token(self, cluster: ClusterName, addon: AddOnName, duration: timedelta) -> AddOnToken:
        """A token of the ServiceAccount by which an add-on identifies itself at the hub.

        Raises ConflictError while that is not ready, MethodNotAllowedError where there is none to be had.
        """

    def session(self, greeting: Greeting) -> AbstractAsyncContextManager[HubSession]:
        """Opens the session; entering returns after Welcome. Raises HubLostError, StaleEpochError for an epoch too low."""

    async def stand_by(
        self,
        cluster: ClusterName,
        agent: AgentId,
        cluster_uid: str,
        *,
        owner: HubId | None,
        epoch: int,
        trusted: Sequence[str] = (),
    ) -> StandingBy:
        """Tells the hub that `owner` holds the session, and by which CAs (`trusted`, as in the Greeting) it is known itself.

        Raises MethodNotAllowedError where it has no word for that.
        """

    async def leave(self, cluster: ClusterName, agent: AgentId, cluster_uid: str) -> bool:
        """Leaves the hub for good; whether it knew the cluster. Raises MethodNotAllowedError where it has no word for that."""

    async def acceptance(self, cluster: ClusterName) -> HubAcceptance:
        """Whether the hub accepted the cluster of this credential. Reads, and changes nothing."""

    async def withdraw(self, cluster: ClusterName, agent: AgentId, cluster_uid: str) -> bool:
        """Withdraws what this bootstrap credential registered; False: the ManagedCluster stays, since an operator accepted it.

        Raises MethodNotAllowedError or ForbiddenError where the hub does not let it.
        """

    async def close(self) -> None: ...


class Dial(Protocol):
    """Makes the client of one hub with one credential; nothing is sent before its first call."""

    def __call__(self, address: HubAddress, identity: ClientIdentity) -> HubClient: ...
