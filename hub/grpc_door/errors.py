"""Translates errors into gRPC statuses. The error's reason determines the code. Trailing metadata has details."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc import aio

from machinery.errors import BadRequestError, MusterError, StaleEpochError
from machinery.observability import logs

log = structlog.get_logger(__name__)

REASON = "reason"
EPOCH = "epoch"
CAUSE = "cause"
"""Name of the metadata entry with a `machinery.errors.DenialCause`, which is more specific than the reason."""
PUSHBACK = "grpc-retry-pushback-ms"
AUDIT_ID = "audit-id"
"""Identifies the call in the log and in audit records, like the header Audit-Id at the HTTPS door."""
INTERNAL_REASON = "InternalError"
Context = aio.ServicerContext[Any, Any]

CODES: dict[str, grpc.StatusCode] = {
    "BadRequest": grpc.StatusCode.INVALID_ARGUMENT,
    "Unauthorized": grpc.StatusCode.UNAUTHENTICATED,
    "Forbidden": grpc.StatusCode.PERMISSION_DENIED,
    "NotFound": grpc.StatusCode.NOT_FOUND,
    "AlreadyExists": grpc.StatusCode.ALREADY_EXISTS,
    "Conflict": grpc.StatusCode.ABORTED,
    "StaleEpoch": grpc.StatusCode.FAILED_PRECONDITION,
    "Invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "Expired": grpc.StatusCode.OUT_OF_RANGE,
    "RequestEntityTooLarge": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TooManyRequests": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "Timeout": grpc.StatusCode.DEADLINE_EXCEEDED,
    "ServiceUnavailable": grpc.StatusCode.UNAVAILABLE,
    "MethodNotAllowed": grpc.StatusCode.UNIMPLEMENTED,
    "NotAcceptable": grpc.StatusCode.INVALID_ARGUMENT,
    "UnsupportedMediaType": grpc.StatusCode.INVALID_ARGUMENT,
}


def set_status(context: Context, error: Exception) -> None:
    """Let a call end with the error's status when its handler returns; gRPC ignores the answer.

    Any error but a MusterError becomes INTERNAL, and is logged with its stack trace. Trailing metadata: reason, audit id and,
    if the error has them, cause, epoch and retry delay (milliseconds). With gRPC's `abort`, call and error would refer to each
    other, and only a full garbage collection, which is rare, would free them.
    """
    request_id = logs.request_id()
    code, message, trailing = grpc.StatusCode.INTERNAL, "internal error", [(REASON, INTERNAL_REASON)]
    if isinstance(error, MusterError):
        code, message, trailing = CODES.get(error.reason, code), error.message, [(REASON, error.reason)]
        if error.denial_cause is not None:
            trailing.append((CAUSE, error.denial_cause.value))
        if isinstance(error, StaleEpochError):
            trailing.append((EPOCH, str(error.epoch)))
        if error.retry_after is not None:
            trailing.append((PUSHBACK, str(round(error.retry_after.total_seconds() * 1000))))
    else:
        log.error("call failed", exc_info=error)
    context.set_code(code)
    context.set_details(message)
    context.set_trailing_metadata((*trailing, *(((AUDIT_ID, request_id),) if request_id else ())))
    error.__traceback__ = None


PREFIX = "/muster.registration."


class RegistrationInterceptor(aio.ServerInterceptor):
    """Decodes requests of the Registration service and ends failed calls with the error's status.

    gRPC itself would report an undecodable request as UNKNOWN, with a Python class name.
    """

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not str(handler_call_details.method).startswith(PREFIX):
            return handler
        decode, encode = handler.request_deserializer, handler.response_serializer

        async def answer(raw: bytes, context: Context) -> Any:
            with _errors_as_status(context):
                return await handler.unary_unary(decode(raw), context)

        async def stream(raw: bytes, context: Context) -> AsyncIterator[Any]:
            with _errors_as_status(context):
                async with aclosing(handler.unary_stream(decode(raw), context)) as answers:
                    async for each in answers:
                        yield each

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, None, encode)
        return grpc.unary_unary_rpc_method_handler(answer, None, encode)


@contextmanager
def _errors_as_status(context: Context) -> Iterator[None]:
    try:
        yield
    except DecodeError:
        set_status(context, BadRequestError("the message cannot be decoded"))
    except Exception as error:  # noqa: BLE001 - every failure becomes the call's status
        set_status(context, error)
