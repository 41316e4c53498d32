"""The state machine for obtaining a certificate: first registration, renewal and add-on certificates.

Rules:

1. Names, key and request are stored before the request is submitted, so that the key of every issued certificate is known.
2. Every write is a state, and every state can be derived from the stored data (`resume`). A restart continues with the same key
   and request and never makes a second one.
3. A key is deleted only after its certificate is stored and mirrored, or after its request was denied or failed.
4. A request that the hub does not know is submitted again with the same bytes; the hub finds it or creates it.
5. A failed step changes nothing: the state stays, and the step is repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from spoke.domain.names import AgentNames


class BootstrapState(Enum):
    """The completed steps. The value describes the next step for status and log."""

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
    PERSISTED = auto()
    ENSURED = auto()
    ACCEPTED = auto()
    """The hub accepted the request and returned its name."""
    NOTED = auto()
    ISSUED = auto()
    STORED = auto()
    MIRRORED = auto()
    FORGOTTEN = auto()
    DENIED = auto()
    """Denied or failed: this request will never be issued."""
    UNKNOWN = auto()
    """The hub does not know the request."""
    USELESS = auto()
    """The certificate is not for our key, or has expired."""


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
}


class TransitionError(Exception):
    """An event that cannot happen in this state: a programming error."""


def after(state: BootstrapState, event: BootstrapEvent) -> BootstrapState:
    """The next state. Raises TransitionError for a transition that is not in the table."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise TransitionError(f"{event.name} cannot happen while {state.name}") from None


@dataclass(frozen=True, slots=True)
class Pending:
    """The stored data of a request until its certificate is stored."""

    names: AgentNames
    key: bytes = field(repr=False)
    request: bytes
    request_name: str = ""


def resume(pending: Pending | None, names: AgentNames) -> BootstrapState:
    """The state after a restart. A pending request with other names is ignored."""
    if pending is None or pending.names != names:
        return BootstrapState.UNPREPARED
    return BootstrapState.REQUESTED if pending.request_name else BootstrapState.PREPARED
