"""From a gRPC status back to what the hub meant, and a session whose stream ends at an awkward moment."""

import asyncio
import gc
from datetime import timedelta
from typing import Any, cast

import grpc
import pytest
from grpc import aio

from machinery.errors import (
    BY_REASON,
    ConflictError,
    DeadlineError,
    DenialCause,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
)
from machinery.runtime.clock import ManualClock
from machinery.wire.session.v1 import session_pb2 as wire
from spoke.domain.next_step import SessionEnd
from spoke.ports.hub import Greeting, HubLostError, SessionEpochError
from spoke.transports.grpc.errors import to_error, to_loss
from spoke.transports.grpc.session import GrpcSession

Code = grpc.StatusCode


def status(code: grpc.StatusCode, **trailing: str) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(*trailing.items()), details="said")


def test_reason_decides_and_without_one_the_code_and_an_unclear_one_is_tried_again() -> None:
    errors = {reason: to_error(status(Code.UNKNOWN, reason=reason)) for reason in BY_REASON}
    assert {reason: type(error) for reason, error in errors.items()} == dict(BY_REASON)
    assert {error.message for error in errors.values()} == {"said"}
    codes = [
        (Code.UNAUTHENTICATED, UnauthorizedError, SessionEnd.UNAUTHENTICATED),
        (Code.PERMISSION_DENIED, ForbiddenError, SessionEnd.REFUSED),
        (Code.NOT_FOUND, NotFoundError, SessionEnd.FORGOTTEN),
        (Code.ABORTED, ConflictError, SessionEnd.SUPERSEDED),
        (Code.INVALID_ARGUMENT, InvalidError, SessionEnd.REFUSED),
        (Code.RESOURCE_EXHAUSTED, TooManyRequestsError, SessionEnd.REFUSED),
        (Code.DEADLINE_EXCEEDED, DeadlineError, SessionEnd.UNREACHABLE),
    ]
    unclear = (Code.UNAVAILABLE, Code.CANCELLED, Code.INTERNAL, Code.UNKNOWN, Code.UNIMPLEMENTED)
    codes += [(code, UnavailableError, SessionEnd.UNREACHABLE) for code in unclear]
    found = [(code, type(to_error(status(code, reason="NoSuchReason"))), to_loss(status(code)).loss) for code, _, _ in codes]
    assert found == codes


def test_cause_tells_losses_apart_and_one_of_a_later_release_is_ignored() -> None:
    rows = [
        (Code.UNAUTHENTICATED, "AuthorityRetired", SessionEnd.OUTLIVED),
        (Code.PERMISSION_DENIED, "ClusterDenied", SessionEnd.REFUSED),
        (Code.UNAUTHENTICATED, "CertificateRevoked", SessionEnd.REVOKED),
        (Code.PERMISSION_DENIED, "ClusterRevoked", SessionEnd.REVOKED),
        (Code.UNAUTHENTICATED, "ClusterDeleted", SessionEnd.FORGOTTEN),
        (Code.NOT_FOUND, "ClusterDeleted", SessionEnd.FORGOTTEN),
        (Code.UNAUTHENTICATED, "ClusterRebuilt", SessionEnd.REFUSED),
        (Code.UNAUTHENTICATED, "CertificateExpired", SessionEnd.UNAUTHENTICATED),
        (Code.UNAUTHENTICATED, "SomethingNew", SessionEnd.UNAUTHENTICATED),
        (Code.UNAVAILABLE, "", SessionEnd.UNREACHABLE),
    ]
    assert [(code, cause, to_loss(status(code, cause=cause)).loss) for code, cause, _ in rows] == rows
    verdicts = {cause: to_error(status(code, cause=cause)).verdict for code, cause, _ in rows}
    assert verdicts == {cause: DenialCause(cause) if cause in set(DenialCause) else None for cause in verdicts}


def test_pause_that_the_hub_asks_for_is_kept_also_when_it_is_busy() -> None:
    trailing = {"grpc-retry-pushback-ms": "1500"}
    assert to_error(status(Code.UNAVAILABLE, **trailing)).retry_after == timedelta(seconds=1.5)
    assert to_loss(status(Code.UNAVAILABLE, **trailing)).retry_after == timedelta(seconds=1.5)
    assert to_loss(status(Code.UNAVAILABLE, **{"grpc-retry-pushback-ms": "soon"})).retry_after is None

    lost = to_loss(status(Code.RESOURCE_EXHAUSTED, **{"grpc-retry-pushback-ms": "2500"}))
    assert (lost.loss, lost.retry_after) == (SessionEnd.UNREACHABLE, timedelta(seconds=2.5))


def test_a_stale_epoch_is_told_with_the_one_that_the_hub_knows() -> None:
    lost = to_loss(status(Code.FAILED_PRECONDITION, reason="StaleEpoch", epoch="12"))
    assert isinstance(lost, SessionEpochError)
    assert (lost.loss, lost.epoch, lost.message) == (SessionEnd.STALE, 12, "said")
    assert isinstance(lost.afresh(), SessionEpochError)
    others: list[dict[str, str]] = [{"reason": "StaleEpoch"}, {"reason": "StaleEpoch", "epoch": "-1"}, {"epoch": "12"}]
    assert {to_loss(status(Code.FAILED_PRECONDITION, **trailing)).loss for trailing in others} == {SessionEnd.REFUSED}


class EndedWhileWriting:
    """Welcomes; then the hub ends the stream, which the writer is the first to notice."""

    def __init__(self) -> None:
        self._welcomed = False
        self.written = 0

    async def read(self) -> wire.HubMessage:
        if self._welcomed:
            await asyncio.Event().wait()
        self._welcomed = True
        return wire.HubMessage(welcome=wire.Welcome(hub_id="hub"))

    async def write(self, _message: wire.AgentMessage) -> None:
        self.written += 1
        if self.written > 1:
            raise asyncio.InvalidStateError

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.ABORTED

    async def details(self) -> str:
        return "superseded"

    async def trailing_metadata(self) -> aio.Metadata:
        return aio.Metadata(("reason", "Conflict"))

    def cancel(self) -> None:
        pass


async def beat_once() -> tuple[SessionEnd, str]:
    """How the first beat fails; nothing of the session stays."""
    session = GrpcSession(cast("Any", EndedWhileWriting()), ManualClock())
    await session.start(Greeting("uid"))
    with pytest.raises(HubLostError) as lost:
        await session.beat(available=True)
    await session.stop()
    return lost.value.loss, lost.value.message


async def test_a_beat_that_the_end_overtakes_says_why_and_leaves_no_stray_error() -> None:
    stray: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: stray.append(context))
    assert await asyncio.create_task(beat_once()) == (SessionEnd.SUPERSEDED, "superseded")
    gc.collect()
    assert stray == []
