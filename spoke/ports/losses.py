"""How a session with a hub ends."""

from datetime import timedelta
from enum import Enum

from machinery.errors import UnavailableError, Verdict


class Loss(Enum):
    """Why a session ended."""

    UNREACHABLE = "the hub is not reachable"
    SILENT = "the hub does not acknowledge"
    SUPERSEDED = "another session of this cluster took over"
    UNAUTHENTICATED = "the hub does not take this credential"
    OUTLIVED = "the hub's CA that signed this credential is on its way out"
    UNRECORDED = "the hub was restored, and has no record of this credential"
    REFUSED = "the hub refuses this cluster"
    REVOKED = "the hub has revoked this credential"
    """For good: only a bootstrap credential that was made since leads back."""
    FORGOTTEN = "the hub does not know this cluster"
    DRAINED = "the hub asked to leave"
    STALE = "the hub knows of a newer owner of this cluster"


_BY_VERDICT = {
    Verdict.CLUSTER_DENIED: Loss.REFUSED,
    Verdict.CLUSTER_REVOKED: Loss.REVOKED,
    Verdict.CERTIFICATE_REVOKED: Loss.REVOKED,
    Verdict.CLUSTER_DELETED: Loss.FORGOTTEN,
    Verdict.CLUSTER_REBUILT: Loss.REFUSED,
    Verdict.AUTHORITY_RETIRED: Loss.OUTLIVED,
    Verdict.CERTIFICATE_LOST: Loss.UNRECORDED,
}


def loss_of(verdict: Verdict | None, otherwise: Loss) -> Loss:
    """What the hub has said of us, where it said so for machines; else what its status stands for."""
    return _BY_VERDICT.get(verdict, otherwise) if verdict is not None else otherwise


class HubLostError(UnavailableError):
    """The session is over; `loss` says how, the message says why."""

    def __init__(self, message: str, loss: Loss = Loss.UNREACHABLE, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.loss = loss

    def afresh(self) -> "HubLostError":
        """The same once more, to be raised elsewhere."""
        return HubLostError(self.message, self.loss, retry_after=self.retry_after)


class StaleEpochError(HubLostError):
    """The hub has heard of a higher `epoch` of this cluster than the session's."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message, Loss.STALE)
        self.epoch = epoch

    def afresh(self) -> HubLostError:
        return StaleEpochError(self.message, self.epoch)
