"""From a gRPC status back to what the hub meant."""

from dataclasses import dataclass
from datetime import timedelta

import grpc
import pytest
from grpc import aio

from machinery.errors import (
    BY_REASON,
    ConflictError,
    DeadlineError,
    ForbiddenError,
    InvalidError,
    MusterError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
    Verdict,
)
from spoke.hubclient.errors import to_error, to_loss
from spoke.ports import Loss, StaleEpochError

Code = grpc.StatusCode


def status(code: grpc.StatusCode, **trailing: str) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(*trailing.items()), details="said")


@pytest.mark.parametrize("reason", sorted(BY_REASON))
def test_the_reason_decides_whatever_the_code_is(reason: str) -> None:
    error = to_error(status(Code.UNKNOWN, reason=reason))
    assert type(error) is BY_REASON[reason]
    assert error.message == "said"


@dataclass(frozen=True, slots=True)
class Row:
    code: grpc.StatusCode
    error: type[MusterError]
    loss: Loss


@pytest.mark.parametrize(
    "row",
    [
        Row(Code.UNAUTHENTICATED, UnauthorizedError, Loss.UNAUTHENTICATED),
        Row(Code.PERMISSION_DENIED, ForbiddenError, Loss.REFUSED),
        Row(Code.NOT_FOUND, NotFoundError, Loss.FORGOTTEN),
        Row(Code.ABORTED, ConflictError, Loss.SUPERSEDED),
        Row(Code.INVALID_ARGUMENT, InvalidError, Loss.REFUSED),
        Row(Code.RESOURCE_EXHAUSTED, TooManyRequestsError, Loss.REFUSED),
        Row(Code.DEADLINE_EXCEEDED, DeadlineError, Loss.UNREACHABLE),
        Row(Code.UNAVAILABLE, UnavailableError, Loss.UNREACHABLE),
        Row(Code.CANCELLED, UnavailableError, Loss.UNREACHABLE),
        Row(Code.INTERNAL, UnavailableError, Loss.UNREACHABLE),
        Row(Code.UNKNOWN, UnavailableError, Loss.UNREACHABLE),
        Row(Code.UNIMPLEMENTED, UnavailableError, Loss.UNREACHABLE),
    ],
    ids=lambda row: row.code.name,
)
def test_without_a_reason_the_code_decides_and_what_is_unclear_is_tried_again(row: Row) -> None:
    assert type(to_error(status(row.code, reason="NoSuchReason"))) is row.error
    assert to_loss(status(row.code)).loss is row.loss


def test_a_credential_whose_ca_goes_is_told_apart_from_one_that_is_refused() -> None:
    outlived = {"cause": Verdict.AUTHORITY_RETIRED.value}
    assert to_loss(status(Code.UNAUTHENTICATED, **outlived)).loss is Loss.OUTLIVED
    assert to_error(status(Code.UNAUTHENTICATED, **outlived)).verdict is Verdict.AUTHORITY_RETIRED
    for other in ({"cause": Verdict.CERTIFICATE_EXPIRED.value}, {"cause": "OfALaterRelease"}, {}):
        assert to_loss(status(Code.UNAUTHENTICATED, **other)).loss is Loss.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("code", "cause", "loss"),
    [
        (Code.PERMISSION_DENIED, "ClusterDenied", Loss.REFUSED),
        (Code.UNAUTHENTICATED, "CertificateRevoked", Loss.REVOKED),
        (Code.PERMISSION_DENIED, "ClusterRevoked", Loss.REVOKED),
        (Code.UNAUTHENTICATED, "ClusterDeleted", Loss.FORGOTTEN),
        (Code.NOT_FOUND, "ClusterDeleted", Loss.FORGOTTEN),
        (Code.UNAUTHENTICATED, "ClusterRebuilt", Loss.REFUSED),
        (Code.UNAUTHENTICATED, "CertificateExpired", Loss.UNAUTHENTICATED),
        (Code.UNAUTHENTICATED, "SomethingNew", Loss.UNAUTHENTICATED),
        (Code.UNAVAILABLE, "", Loss.UNREACHABLE),
    ],
)
def test_what_the_hub_says_of_us_is_told_apart(code: Code, cause: str, loss: Loss) -> None:
    """The words of a hub of a later release are as good as none."""
    assert to_loss(status(code, cause=cause)).loss is loss
    told = to_error(status(code, cause=cause)).verdict
    assert told is (Verdict(cause) if cause in set(Verdict) else None)


def test_a_pause_that_the_hub_asks_for_is_kept() -> None:
    trailing = {"grpc-retry-pushback-ms": "1500"}
    assert to_error(status(Code.UNAVAILABLE, **trailing)).retry_after == timedelta(seconds=1.5)
    assert to_loss(status(Code.UNAVAILABLE, **trailing)).retry_after == timedelta(seconds=1.5)
    assert to_loss(status(Code.UNAVAILABLE, **{"grpc-retry-pushback-ms": "soon"})).retry_after is None


def test_a_hub_that_is_busy_and_says_until_when_is_asked_again_then() -> None:
    lost = to_loss(status(Code.RESOURCE_EXHAUSTED, **{"grpc-retry-pushback-ms": "2500"}))
    assert (lost.loss, lost.retry_after) == (Loss.UNREACHABLE, timedelta(seconds=2.5))


def test_a_stale_epoch_is_told_with_the_one_that_the_hub_knows() -> None:
    lost = to_loss(status(Code.FAILED_PRECONDITION, reason="StaleEpoch", epoch="12"))
    assert isinstance(lost, StaleEpochError)
    assert (lost.loss, lost.epoch, lost.message) == (Loss.STALE, 12, "said")
    assert isinstance(lost.afresh(), StaleEpochError)


@pytest.mark.parametrize("trailing", [{"reason": "StaleEpoch"}, {"reason": "StaleEpoch", "epoch": "-1"}, {"epoch": "12"}])
def test_without_reason_or_epoch_it_is_a_refusal_like_any_other(trailing: dict[str, str]) -> None:
    assert to_loss(status(Code.FAILED_PRECONDITION, **trailing)).loss is Loss.REFUSED
