"""Reasons and errors for the end of a session."""

from datetime import timedelta
from enum import Enum

from machinery.errors import DenialCause, UnavailableError


class SessionEnd(Enum):
    UNREACHABLE = "the hub is not reachable"
    SILENT = "the hub does not acknowledge"
    SUPERSEDED = "another session of this cluster took over"
    UNAUTHENTICATED = "the hub does not take this credential"
    OUTLIVED = "the hub's CA that signed this credential is on its way out"
    UNRECORDED = "the hub was restored, and has no record of this credential"
    REFUSED = "the hub refuses this cluster"
    REVOKED = "the hub has revoked this credential"
    """Permanent: the agent needs a bootstrap credential made after the revocation."""
    FORGOTTEN = "the hub does not know this cluster"
    DRAINED = "the hub asked to leave"
    STALE = "the hub knows of a newer owner of this cluster"


_BY_VERDICT = {
    DenialCause.CLUSTER_DENIED: SessionEnd.REFUSED,
    DenialCause.CLUSTER_REVOKED: SessionEnd.REVOKED,
    DenialCause.CERTIFICATE_REVOKED: SessionEnd.REVOKED,
    DenialCause.CLUSTER_DELETED: SessionEnd.FORGOTTEN,
    DenialCause.CLUSTER_REBUILT: SessionEnd.REFUSED,
    DenialCause.AUTHORITY_RETIRED: SessionEnd.OUTLIVED,
    DenialCause.CERTIFICATE_LOST: SessionEnd.UNRECORDED,
}


def loss_of(verdict: DenialCause | None, otherwise: SessionEnd) -> SessionEnd:
    """The reason for the hub's denial cause if there is one; else `otherwise`, from the status."""
    return _BY_VERDICT.get(verdict, otherwise) if verdict is not None else otherwise


class HubLostError(UnavailableError):
    """The session has ended; `loss` is the reason as a value, the message the details."""

    def __init__(
        self, message: str, loss: SessionEnd = SessionEnd.UNREACHABLE, *, retry_after: timedelta | None = None
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.loss = loss

    def afresh(self) -> "HubLostError":
        """A copy, to be raised elsewhere."""
        return HubLostError(self.message, self.loss, retry_after=self.retry_after)


class SessionEpochError(HubLostError):
    """The hub knows a higher `epoch` of this cluster than the session's."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message, SessionEnd.STALE)
        self.epoch = epoch

    def afresh(self) -> HubLostError:
        return SessionEpochError(self.message, self.epoch)
