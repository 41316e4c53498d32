"""An open session with what it stands on, and what outlives every session."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Protocol

from machinery.identity import HubId
from machinery.meta.conditions import Condition
from machinery.runtime.clock import Clock
from machinery.runtime.scheduler import Timetable
from spoke.cluster.health import AvailabilityWatch
from spoke.controllers.addon_registration import AddOnCertificates
from spoke.credentials.kubeconfigs import HOWEVER, HubConnection
from spoke.credentials.owner_record import Owner
from spoke.domain.ack_timeout import SILENCE
from spoke.domain.event import AgentEvent
from spoke.domain.hubs import ListedHub
from spoke.domain.report import ExternalEndpoint
from spoke.domain.route import Reach
from spoke.domain.status import ClusterClaimRules
from spoke.observability.progress import AgentProgress
from spoke.options import AddOnCare
from spoke.ports import Cluster, HubClient, HubSession


@dataclass(slots=True)
class ActiveSession:
    """An open session and what it stands on."""

    connection: HubConnection
    client: HubClient
    session: HubSession
    close: Callable[[], Awaitable[None]]
    owner: Owner = field(default_factory=Owner)
    """What the owner's secret said when it was dialled."""


KeepAddOns = Callable[[bytes], Awaitable[None]]
"""Has the add-ons know the hub as this kubeconfig does."""
TellNews = Callable[[AgentEvent], None]


class Opener(Protocol):
    """Opens a link; raises HubLostError."""

    async def __call__(self, connection: HubConnection) -> ActiveSession: ...


class HubNews(Protocol):
    """What a session tells about its hub, and the list that it tells the hub."""

    def accepted(self, *, accepted: bool) -> None:
        """Whether the hub accepts the cluster."""

    def asked_to_move(self, target: HubId, why: str) -> None:
        """The hub asks the agent to go to another."""

    def listed(self) -> tuple[ListedHub, ...]: ...

    async def follow_trust(self, link: ActiveSession, addons: KeepAddOns, tell: TellNews) -> None:
        """Keeps what the hub tells of its CAs, for as long as the session lasts."""


class NoNews(HubNews):
    """Nobody wants to know."""

    def accepted(self, *, accepted: bool) -> None:
        del accepted

    def asked_to_move(self, target: HubId, why: str) -> None:
        del target, why

    def listed(self) -> tuple[ListedHub, ...]:
        return ()

    async def follow_trust(self, link: ActiveSession, addons: KeepAddOns, tell: TellNews) -> None:
        del link, addons, tell
        await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class SessionSurroundings:
    """What outlives every session."""

    spoke: Cluster
    management: Cluster
    watch: AvailabilityWatch
    claims: ClusterClaimRules
    endpoints: tuple[ExternalEndpoint, ...]
    resync: timedelta
    clock: Clock
    hub_clock: Clock
    """Tells the hub's time."""
    timetable: Timetable
    progress: AgentProgress
    random: Random
    reach: Reach = HOWEVER
    hubs: HubNews = field(default_factory=NoNews)
    silence: timedelta = SILENCE
    annotations: Mapping[str, str] = field(default_factory=dict)
    addons: AddOnCare = field(default_factory=AddOnCare)
    conditions: dict[str, Condition] = field(default_factory=dict)
    """Further conditions of the cluster to report, by type."""


class Registrar(Protocol):
    """Makes the add-on registration controller of a link: it keeps its certificates from session to session."""

    def __call__(self, link: ActiveSession) -> AddOnCertificates: ...
