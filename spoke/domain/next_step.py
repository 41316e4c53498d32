"""The next action of the agent, and the reasons why sessions end: pure functions and tables."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

from machinery.errors import DenialCause
from machinery.identity import HubId
from spoke.domain.credential import CredentialFinding


class SessionLoss(Enum):
    """Why a session has ended, or was not opened."""

    UNREACHABLE = "the hub is not reachable"
    SILENT = "the hub does not acknowledge"
    SUPERSEDED = "another session of this cluster took over"
    UNAUTHENTICATED = "the hub does not accept this credential"
    OUTLIVED = "the hub is retiring the CA that signed this credential"
    UNRECORDED = "the hub was restored from a backup, and has no record of this credential"
    REFUSED = "the hub refuses this cluster"
    REVOKED = "the hub has revoked this credential"
    """Permanent: the agent needs a bootstrap credential that was made after the revocation."""
    FORGOTTEN = "the hub does not know this cluster"
    DRAINED = "the hub asked the agent to leave"
    STALE = "the hub knows of a newer owner of this cluster"


BRIEF = (SessionLoss.UNREACHABLE, SessionLoss.SILENT, SessionLoss.DRAINED)
"""Losses that are probably short, such as restarts and drains of replicas."""

_BY_CAUSE = {
    DenialCause.CLUSTER_DENIED: SessionLoss.REFUSED,
    DenialCause.CLUSTER_REVOKED: SessionLoss.REVOKED,
    DenialCause.CERTIFICATE_REVOKED: SessionLoss.REVOKED,
    DenialCause.CLUSTER_DELETED: SessionLoss.FORGOTTEN,
    DenialCause.CLUSTER_REBUILT: SessionLoss.REFUSED,
    DenialCause.AUTHORITY_RETIRED: SessionLoss.OUTLIVED,
    DenialCause.CERTIFICATE_LOST: SessionLoss.UNRECORDED,
}


def loss_of(cause: DenialCause | None, otherwise: SessionLoss) -> SessionLoss:
    """Return the loss for the denial cause that the hub reports; if there is no such cause, the loss `otherwise`."""
    return _BY_CAUSE.get(cause, otherwise) if cause is not None else otherwise


class Action(Enum):
    OBSERVE = auto()
    """Read the list of hubs and the stored state, and choose a hub."""
    REST = auto()
    """Wait until the chosen hub may be tried again; then observe."""
    GIVE_UP = auto()
    """Report that there is no hub, or that the agent can obtain no credential for the hub."""
    REGISTER = auto()
    """Obtain a certificate and store it in the hub's slot."""
    GIVE = auto()
    """Make the hub the owner, with its credential."""
    RAISE_EPOCH = auto()
    """Write another epoch; the owner stays the same."""
    KEEP = auto()
    """Keep the owner's secret as it is."""
    CONNECT = auto()
    SERVE = auto()


@dataclass(frozen=True, slots=True)
class NextStep:
    action: Action
    delay: timedelta = timedelta()
    """Pause before this step. A changed list of hubs ends the pause."""
    finding: CredentialFinding | None = None
    """Why the agent must no longer use the hub's credential; None if it may."""


OBSERVE = NextStep(Action.OBSERVE)


@dataclass(frozen=True, slots=True)
class AgentState:
    hub: HubId | None
    rests: bool = False
    """The hub rests after a failure, so it must not be tried yet."""
    is_flawed: bool = False
    """The hub's stored credential is missing or cannot be used."""
    can_register: bool = False
    """The agent has a credential with which it can request a certificate from the hub."""
    is_new: bool = False
    owner: HubId | None = None
    """The owner in the owner's secret; None: the agent has no owner yet."""
    needs_epoch: bool = False
    """The owner needs another epoch, because it has none or hubs refuse its epoch."""


_DECISIONS: tuple[tuple[Callable[[AgentState], bool], Action], ...] = (
    (lambda state: state.hub is None, Action.GIVE_UP),
    (lambda state: state.rests, Action.REST),
    (lambda state: state.is_flawed and not state.can_register, Action.GIVE_UP),
    (lambda state: state.is_flawed, Action.REGISTER),
    (lambda state: state.is_new or state.hub != state.owner, Action.GIVE),
    (lambda state: state.needs_epoch, Action.RAISE_EPOCH),
    (lambda _: True, Action.KEEP),
)


def decide(state: AgentState) -> Action:
    return next(action for holds, action in _DECISIONS if holds(state))
