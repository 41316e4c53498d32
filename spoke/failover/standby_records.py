"""Values and the port of standby registration, which handles the hubs of the list that do not hold the agent's session.

Credentials are stored in the slots, one secret per hub; an agent that changes hub reads the slot.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from machinery.identity import HubId
from spoke.bootstraps import BootstrapListing
from spoke.domain.hubs import ListedHub
from spoke.domain.names import AgentNames


@dataclass(frozen=True, slots=True)
class StandbyContext:
    """The input of standby registration."""

    listing: BootstrapListing
    names: AgentNames
    cluster_uid: str
    busy: HubId | None = None
    """The hub that the agent itself deals with: standby registration makes no call there. None: no hub."""
    owner: HubId | None = None
    """The hub that holds the session according to the owner's secret; None: none yet."""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StandbyIdentity:
    """The agent's identity and its owner; the same for every hub."""

    names: AgentNames
    cluster_uid: str
    owner: HubId | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StandbyRecord:
    """The state of the registration at a hub."""

    hub: ListedHub
    trouble: str = ""
    """The last failure; empty: none."""
    ends_soon: bool = False
    epoch: int = 0
    """The highest epoch that the hub has claimed."""


class Reserve(Protocol):
    """Standby registration at every hub of the list except the busy one."""

    @property
    def hubs(self) -> Mapping[HubId, ListedHub]:
        """The present state of each standby hub."""

    @property
    def epoch(self) -> int:
        """The highest epoch that any standby hub has claimed."""

    def attend(self, post: StandbyContext) -> None:
        """Set the hubs to register at; returns at once. A hub that is no longer busy is then informed of the owner."""

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` on every change of `hubs`; return a function that ends this."""

    async def run(self) -> None:
        """Maintain the registrations until cancelled."""


class NoReserve(Reserve):
    """No standby registration."""

    @property
    def hubs(self) -> Mapping[HubId, ListedHub]:
        return {}

    @property
    def epoch(self) -> int:
        return 0

    def attend(self, post: StandbyContext) -> None:
        del post

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        del changed
        return lambda: None

    async def run(self) -> None:
        """Does nothing."""
