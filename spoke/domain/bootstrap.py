"""How a certificate is obtained, as a table: first registration, renewal and add-on certificates all go this way.

Rules:

1. Names, key and request are persisted before the hub hears of them: whatever certificate the hub may issue, its key is ours.
2. Every write is a state of its own, and every state can be read back from what is stored (`resume`). A restart goes on with
   the same key and the same request; it never makes a second one.
3. A key is forgotten only after its certificate is stored and mirrored, or after its request was denied or failed for good.
4. A request that the hub no longer knows is submitted again with the same bytes: the hub finds it or stores it anew.
5. A step that fails changes nothing: the state stays, the step is repeated.
6. Where the hub itself is changed (another bootstrap kubeconfig), everything starts over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from machinery.identity import AddOnName
from spoke.domain.names import AgentNames


class BootstrapState(Enum):
    """What is known to be done. The value says what comes next, for people."""

    UNPREPARED = "making a key and a certificate signing request"
    PREPARED = "making sure that the hub knows the cluster"
    KNOWN = "submitting the certificate signing request"
    SUBMITTED = "noting the name of the certificate signing request"
    REQUESTED = "waiting for the certificate signing request to be approved"
    ISSUED = "storing the certificate"
    STORED = "mirroring the credential to its directory"
    MIRRORED = "forgetting the pending request"
    DONE = "holding a credential"


class BootstrapEvent(Enum):
    """What happened."""

    PERSISTED = auto()
    ENSURED = auto()
    ACCEPTED = auto()
    """The hub took the request and named it."""
    NOTED = auto()
    ISSUED = auto()
    STORED = auto()
    MIRRORED = auto()
    FORGOTTEN = auto()
    DENIED = auto()
    """Denied, or failed for good: this request will never be issued."""
    UNKNOWN = auto()
    """The hub does not know the request."""
    USELESS = auto()
    """The certificate is not for our key, or has ended."""
    HUB_CHANGED = auto()


TRANSITIONS: Mapping[tuple[BootstrapState, BootstrapEvent], BootstrapState] = {
    (BootstrapState.UNPREPARED, BootstrapEvent.PERSISTED): BootstrapState.PREPARED,
    (BootstrapState.PREPARED, BootstrapEvent.ENSURED): BootstrapState.KNOWN,
    (BootstrapState.KNOWN, BootstrapEvent.ACCEPTED): BootstrapState.SUBMITTED,
    (BootstrapState.KNOWN, BootstrapEvent.UNKNOWN): BootstrapState.PREPARED,
    (BootstrapState.SUBMITTED, BootstrapEvent.NOTED): BootstrapState.REQUESTED,
    (BootstrapState.REQUESTED, BootstrapEvent.ISSUED): BootstrapState.ISSUED,
    (BootstrapState.REQUESTED, BootstrapEvent.DENIED): BootstrapState.UNPREPARED,
    (BootstrapState.REQUESTED, BootstrapEvent.UNKNOWN): BootstrapState.PREPARED,
    (BootstrapState.REQUESTED, BootstrapEvent.USELESS): BootstrapState.UNPREPARED,
    (BootstrapState.ISSUED, BootstrapEvent.STORED): BootstrapState.STORED,
    (BootstrapState.STORED, BootstrapEvent.MIRRORED): BootstrapState.MIRRORED,
    (BootstrapState.MIRRORED, BootstrapEvent.FORGOTTEN): BootstrapState.DONE,
    **{(state, BootstrapEvent.HUB_CHANGED): BootstrapState.UNPREPARED for state in BootstrapState},
}


class TransitionError(Exception):
    """An event that cannot happen in this state: a mistake in the program."""


def after(state: BootstrapState, event: BootstrapEvent) -> BootstrapState:
    """The state that follows. Raises TransitionError for what the table does not hold."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise TransitionError(f"{event.name} cannot happen while {state.name}") from None


@dataclass(frozen=True, slots=True)
class Pending:
    """What is kept of a request until its certificate is stored."""

    names: AgentNames
    key: bytes = field(repr=False)
    request: bytes
    request_name: str = ""
    addon: AddOnName | None = None


def resume(pending: Pending | None, names: AgentNames) -> BootstrapState:
    """Where to go on after a restart. A pending request of other names than ours is not ours to follow."""
    if pending is None or pending.names != names:
        return BootstrapState.UNPREPARED
    return BootstrapState.REQUESTED if pending.request_name else BootstrapState.PREPARED
