"""The hubs of an agent's list, in the order in which it prefers them."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from machinery.identity import HubId


class HubState(Enum):
    """How the agent stands with a hub of its list."""

    READY = "ready"
    """It has a credential, and the hub has accepted the cluster."""
    NOT_ACCEPTED = "not accepted"
    """It has a credential; the hub has not accepted the cluster."""
    REGISTERING = "registering"
    """It has no credential yet."""
    DENIED = "denied"
    """The hub has denied the cluster."""
    UNREACHABLE = "unreachable"
    """It has a credential; the hub did not answer when it was asked last."""
    LOST = "lost"
    """It has no credential and no way to one: its bootstrap credential has ended."""


@dataclass(frozen=True, slots=True)
class ListedHub:
    """One hub of the list, as the agent tells of it."""

    hub_id: HubId
    name: str
    """How the agent calls it: the name of its bootstrap kubeconfig's file or secret."""
    url: str
    state: HubState
    credential_ends_at: datetime | None = None
