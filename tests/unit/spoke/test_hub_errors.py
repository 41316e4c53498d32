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
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
    Verdict,
)
from machinery.runtime.clock import ManualClock
from machinery.wire.session.v1 import session_pb2 as wire
from spoke.ports import Greeting, HubLostError, Loss, StaleEpochError
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
        (Code.UNAUTHENTICATED, UnauthorizedError, Loss.UNAUTHENTICATED),
        (Code.PERMISSION_DENIED, ForbiddenError, Loss.REFUSED),
        (Code.NOT_FOUND, NotFoundError, Loss.FORGOTTEN),
        (Code.ABORTED, ConflictError, Loss.SUPERSEDED),
        (Code.INVALID_ARGUMENT, InvalidError, Loss.REFUSED),
        (Code.RESOURCE_EXHAUSTED, TooManyRequestsError, Loss.REFUSED),
        (Code.DEADLINE_EXCEEDED, DeadlineError, Loss.UNREACHABLE),
    ]
    unclear = (Code.UNAVAILABLE, Code.CANCELLED, Code.INTERNAL, Code.UNKNOWN, Code.UNIMPLEMENTED)
    codes += [(code, UnavailableError, Loss.UNREACHABLE) for code in unclear]
    found = [(code, type(to_error(status(code, reason="NoSuchReason"))), to_loss(status(code)).loss) for code, _, _ in codes]
    assert found == codes


def test_cause_tells_losses_apart_and_one_of_a_later_release_is_ignored() -> None:
    rows = [
        (Code.UNAUTHENTICATED, "AuthorityRetired", Loss.OUTLIVED),
        (Code.PERMISSION_DENIED, "ClusterDenied", Loss.REFUSED),
        (Code.UNAUTHENTICATED, "CertificateRevoked", Loss.REVOKED),
        (Code.PERMISSION_DENIED, "ClusterRevoked", Loss.REVOKED),
        (Code.UNAUTHENTICATED, "ClusterDeleted", Loss.FORGOTTEN),
        (Code.NOT_FOUND, "ClusterDeleted", Loss.FORGOTTEN),
        (Code.UNAUTHENTICATED, "ClusterRebuilt", Loss.REFUSED),
        (Code.UNAUTHENTICATED, "CertificateExpired", Loss.UNAUTHENTICATED),
        (Code.UNAUTHENTICATED, "SomethingNew", Loss.UNAUTHENTICATED),
        (Code.UNAVAILABLE, "", Loss.UNREACHABLE),
    ]
    assert [(code, cause, to_loss(status(code, cause=cause)).loss) for code, cause, _ in rows] == rows
    verdicts = {cause: to_error(status(code, cause=cause)).verdict for code, cause, _ in rows}
    assert verdicts == {cause: Verdict(cause) if cause in set(Verdict) else None for cause in verdicts}


def test_pause_that_the_hub_asks_for_is_kept_also_when_it_is_busy() -> None:
    trailing = {"grpc-retry-pushback-ms": "1500"}
    assert to_error(status(Code.UNAVAILABLE, **trailing)).retry_after == timedelta(seconds=1.5)
    assert to_loss(status(Code.UNAVAILABLE, **trailing)).retry_after == timedelta(seconds=1.5)
    assert to_loss(status(Code.UNAVAILABLE, **{"grpc-retry-pushback-ms": "soon"})).retry_after is None

    lost = to_loss(status(Code.RESOURCE_EXHAUSTED, **{"grpc-retry-pushback-ms": "2500"}))
    assert (lost.loss, lost.retry_after) == (Loss.UNREACHABLE, timedelta(seconds=2.5))


def test_a_stale_epoch_is_told_with_the_one_that_the_hub_knows() -> None:
    lost = to_loss(status(Code.FAILED_PRECONDITION, reason="StaleEpoch", epoch="12"))
    assert isinstance(lost, StaleEpochError)
    assert (lost.loss, lost.epoch, lost.message) == (Loss.STALE, 12, "said")
    assert isinstance(lost.afresh(), StaleEpochError)
    others: list[dict[str, str]] = [{"reason": "StaleEpoch"}, {"reason": "StaleEpoch", "epoch": "-1"}, {"epoch": "12"}]
    assert {to_loss(status(Code.FAILED_PRECONDITION, **trailing)).loss for trailing in others} == {Loss.REFUSED}


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


async def beat_once() -> tuple[Loss, str]:
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
    assert await asyncio.create_task(beat_once()) == (Loss.SUPERSEDED, "superseded")
    gc.collect()
    assert stray == []
