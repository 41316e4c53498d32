"""Translates a gRPC status to the hub's error, and to the reason of a session's end."""

from datetime import timedelta

import grpc
from grpc import aio

from machinery import errors
from spoke.domain.next_step import SessionLoss, loss_of
from spoke.ports.hub import HubLostError, SessionEpochError

REASON = "reason"
CAUSE = "cause"
TORN = "Internal error from Core"
PUSHBACK = "grpc-retry-pushback-ms"
STALE = "StaleEpoch"
EPOCH = "epoch"

_BY_CODE: dict[grpc.StatusCode, type[errors.MusterError]] = {
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthorizedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.ForbiddenError,
    grpc.StatusCode.NOT_FOUND: errors.NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExistsError,
    grpc.StatusCode.ABORTED: errors.ConflictError,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.InvalidError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.TooManyRequestsError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
}
_LOSSES = {
    grpc.StatusCode.UNAUTHENTICATED: SessionLoss.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: SessionLoss.REFUSED,
    grpc.StatusCode.FAILED_PRECONDITION: SessionLoss.REFUSED,
    grpc.StatusCode.INVALID_ARGUMENT: SessionLoss.REFUSED,
    grpc.StatusCode.ALREADY_EXISTS: SessionLoss.REFUSED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: SessionLoss.REFUSED,
    grpc.StatusCode.NOT_FOUND: SessionLoss.FORGOTTEN,
    grpc.StatusCode.ABORTED: SessionLoss.SUPERSEDED,
}


def to_error(error: aio.AioRpcError) -> errors.MusterError:
    """Return the error that the hub reported.

    INTERNAL, UNKNOWN and a CANCELLED that the hub causes become UnavailableError: the hub cannot answer now.
    """
    trailing = error.trailing_metadata()
    reason = str(trailing.get(REASON, "")) if trailing is not None else ""
    kind = errors.BY_REASON.get(reason) or _BY_CODE.get(error.code(), errors.UnavailableError)
    message, cause = error.details() or error.code().name, _denial_cause(trailing)
    return kind(message, retry_after=_pushback(trailing), causes=cause.because(message) if cause is not None else ())


DROPPED = "the hub dropped the call; it may be overloaded"
DROPPED_PAUSE = timedelta(seconds=5)


OVERLOADED = frozenset((grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED))
"""Codes of a call that the hub was too busy to serve."""


class HubBusyError(HubLostError):
    """The hub is overloaded: it requests a delay, or it dropped the call."""

    def fresh_copy(self) -> HubLostError:
        return HubBusyError(self.message, self.loss, retry_after=self.retry_after)


class StreamBrokenError(HubLostError):
    """The stream ended during a write, and gRPC reported its own error instead of the hub's status."""


def lost_error(error: aio.AioRpcError) -> HubLostError:
    """Return the reason why the session stream has ended, according to its status."""
    if error.code() is grpc.StatusCode.INTERNAL and error.details() == TORN:
        return StreamBrokenError(TORN)
    trailing = error.trailing_metadata() or aio.Metadata()
    if str(trailing.get(REASON, "")) == STALE and (epoch := str(trailing.get(EPOCH, ""))).isdigit():
        return SessionEpochError(error.details() or error.code().name, int(epoch))
    loss, pushback = loss_of(_denial_cause(trailing), _LOSSES.get(error.code(), SessionLoss.UNREACHABLE)), _pushback(trailing)
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and pushback is not None:
        return HubBusyError(error.details() or error.code().name, SessionLoss.UNREACHABLE, retry_after=pushback)
    if error.code() is grpc.StatusCode.CANCELLED:  # too many calls wait in gRPC's server
        return HubBusyError(DROPPED, loss, retry_after=pushback or DROPPED_PAUSE)
    return HubLostError(error.details() or error.code().name, loss, retry_after=pushback)


def _denial_cause(trailing: aio.Metadata | None) -> errors.DenialCause | None:
    """Return the denial cause in the trailing metadata; None if it is missing, or this version does not know it."""
    said = str(trailing.get(CAUSE, "")) if trailing is not None else ""
    return next((each for each in errors.DenialCause if each.value == said), None)


def _pushback(trailing: aio.Metadata | None) -> timedelta | None:
    text = str(trailing.get(PUSHBACK, "")) if trailing is not None else ""
    return timedelta(milliseconds=int(text)) if text.isdigit() else None
