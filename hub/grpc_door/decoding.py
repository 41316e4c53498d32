"""Rejects messages that cannot be decoded, without the error text of the protobuf library."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from hub.grpc_door.errors import Context, abort
from machinery.errors import BadRequestError

PREFIX = "/muster.registration."


class Decoding(aio.ServerInterceptor):
    """Decodes requests of the Registration service. gRPC reports a decoding error as UNKNOWN, with a Python class name."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not str(handler_call_details.method).startswith(PREFIX):
            return handler
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _stream(handler.unary_stream, handler.request_deserializer), None, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            _unary(handler.unary_unary, handler.request_deserializer), None, handler.response_serializer
        )


def _unary(method: Any, decode: Callable[[bytes], Any]) -> Any:
    async def answered(raw: bytes, context: Context) -> Any:
        return await method(await _decoded(raw, decode, context), context)

    return answered


def _stream(method: Any, decode: Callable[[bytes], Any]) -> Any:
    async def answered(raw: bytes, context: Context) -> AsyncIterator[Any]:
        async with aclosing(method(await _decoded(raw, decode, context), context)) as answers:
            async for answer in answers:
                yield answer

    return answered


async def _decoded(raw: bytes, decode: Callable[[bytes], Any], context: Context) -> Any:
    try:
        return decode(raw)
    except DecodeError:
        await abort(context, BadRequestError("the message cannot be decoded"))
