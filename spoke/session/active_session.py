"""An open session with its connection, and the state that outlives sessions."""

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
from spoke.credentials.owner import Owner
from spoke.domain.beats import SILENCE
from spoke.domain.hubs import ListedHub
from spoke.domain.report import AgentEvent, ExternalEndpoint
from spoke.domain.route import Reach
from spoke.domain.status import ClusterClaimRules
from spoke.observability.progress import AgentProgress
from spoke.options import AddOnCare
from spoke.ports import Cluster, HubClient, HubSession


@dataclass(slots=True)
class ActiveSession:
    """An open session and its connection."""

    connection: HubConnection
    client: HubClient
    session: HubSession
    close: Callable[[], Awaitable[None]]
    owner: Owner = field(default_factory=Owner)
    """The content of the owner's secret when the hub was dialled."""


KeepAddOns = Callable[[bytes], Awaitable[None]]
"""Writes a new kubeconfig of the hub into the add-ons' secrets."""
TellNews = Callable[[AgentEvent], None]


class Opener(Protocol):
    """Opens a link; raises HubLostError."""

    async def __call__(self, connection: HubConnection) -> ActiveSession: ...


class HubNews(Protocol):
    """Receives a session's findings about its hub, and provides the hub list that the session sends."""

    def accepted(self, *, accepted: bool) -> None:
        """Called with whether the hub accepts the cluster."""

    def asked_to_move(self, target: HubId, why: str) -> None:
        """Called when the hub asks the agent to move to another hub."""

    def listed(self) -> tuple[ListedHub, ...]: ...

    async def follow_trust(self, link: ActiveSession, addons: KeepAddOns, tell: TellNews) -> None:
        """Adopt the CAs that the hub announces, as long as the session lasts."""


class NoNews(HubNews):
    """Ignores everything."""

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
    """State that outlives sessions."""

    spoke: Cluster
    management: Cluster
    watch: AvailabilityWatch
    claims: ClusterClaimRules
    endpoints: tuple[ExternalEndpoint, ...]
    resync: timedelta
    clock: Clock
    hub_clock: Clock
    """Shows the hub's time."""
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
    """Creates the add-on registration controller of a link; its credentials persist between sessions."""

    def __call__(self, link: ActiveSession) -> AddOnCertificates: ...
