"""The hubs of the list that do not hold the agent's session, as the agent sees those who keep them ready.

What is kept there lies in the credential slots, one secret per hub: whoever goes to a hub reads it from the slot.
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
    """What whoever keeps the other hubs has to know."""

    listing: BootstrapListing
    names: AgentNames
    cluster_uid: str
    busy: HubId | None = None
    """The hub that the agent itself deals with: nobody else registers, renews or speaks there. None: there is none."""
    owner: HubId | None = None
    """The hub that holds the session, as the owner secret says; None: none does yet."""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StandbyIdentity:
    """Who the agent is, and whom it reports to: the same for every hub."""

    names: AgentNames
    cluster_uid: str
    owner: HubId | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StandbyRecord:
    """How it stands with the hub."""

    hub: ListedHub
    trouble: str = ""
    """What failed last; empty: nothing."""
    ends_soon: bool = False
    epoch: int = 0
    """The highest that the hub has told."""


class Reserve(Protocol):
    """Keeps every hub of the list but the busy one."""

    @property
    def hubs(self) -> Mapping[HubId, ListedHub]:
        """How it stands with each hub that is kept, as of now."""

    @property
    def epoch(self) -> int:
        """The highest epoch that any hub has told."""

    def attend(self, post: StandbyContext) -> None:
        """What is to be kept from now on; returns at once. Whoever is no longer busy is told of the owner."""

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls `changed` whenever `hubs` is another; returns how to end that."""

    async def run(self) -> None:
        """Keeps them, until cancelled."""


class NoReserve(Reserve):
    """Nobody registers ahead of need."""

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
        """There is nothing to do."""
