"""Long lists, sent in pieces so that the event loop is not blocked and the whole body is never copied.

A piece is sent when the client has read the previous one. For clients that accept gzip it is compressed on a thread.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web

from machinery.apiserver.http.negotiation import JSON, ResponseForm, takes_gzip
from machinery.apiserver.http.responses import beside, json_answer, spliced_list

PIECE = 256 * 1024
LONG = 2 * PIECE
"""Shorter lists, in bytes, are sent at once."""
_END = b"]}"
GZIP = 31
"""zlib's `wbits` for a gzip stream with the largest window."""


async def list_answer(
    request: web.Request, envelope: Mapping[str, Any], items: Sequence[bytes], form: ResponseForm
) -> web.StreamResponse:
    """Respond with a list object around encoded documents."""
    size = sum(map(len, items))
    if size < LONG or form.media != JSON or form.pretty or request.method == "HEAD":
        return await json_answer(request, spliced_list(envelope, items), form)
    head = _head(envelope)
    length = len(head) + size + len(items) - 1 + len(_END)
    return await _sent(request, _at_once(_pieces(head, items)), length)


async def portions_answer(
    request: web.Request, envelope: Mapping[str, Any], portions: AsyncIterator[Sequence[bytes]]
) -> web.StreamResponse:
    """Respond with a JSON list of documents in portions; the next portion is read after the previous one was sent."""
    return await _sent(request, _joined(_head(envelope), portions), None)


async def _sent(request: web.Request, pieces: AsyncIterator[bytes], length: int | None) -> web.StreamResponse:
    """`length`: in bytes; None: unknown."""
    response = web.StreamResponse(headers={"Content-Type": JSON})
    compressing = takes_gzip(request.headers.get("Accept-Encoding", ""))
    if compressing:
        response.headers.update({"Content-Encoding": "gzip", "Vary": "Accept-Encoding"})
    elif length is not None:
        response.content_length = length
    try:
        await response.prepare(request)
        await (_compressed if compressing else _plain)(response, pieces)
        await response.write_eof()
    except ConnectionResetError:
        return response  # the client has disconnected
    except BaseException:
        if request.transport is not None:
            request.transport.abort()  # a truncated list must not look complete
        raise
    return response


def _head(envelope: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(envelope)[:-1] + b',"items":['


async def _at_once(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _joined(head: bytes, portions: AsyncIterator[Sequence[bytes]]) -> AsyncIterator[bytes]:
    """The whole list. A portion is released before the next is requested."""
    between = head
    async for portion in portions:
        for piece in filter(None, _pieces(between, portion, end=b"")):
            yield piece
        between = b","
    yield _END


async def _plain(response: web.StreamResponse, pieces: AsyncIterator[bytes]) -> None:
    async for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0)  # otherwise a fast client would block the event loop


async def _compressed(response: web.StreamResponse, pieces: AsyncIterator[bytes]) -> None:
    stream = zlib.compressobj(1, zlib.DEFLATED, GZIP)
    async for piece in pieces:
        await response.write(await beside(stream.compress, piece))
    await response.write(stream.flush())


def _pieces(head: bytes, items: Sequence[bytes], end: bytes = _END) -> Iterator[bytes]:
    """Items after `head` in pieces of about PIECE bytes, split between documents."""
    parts, size = [head], len(head)
    for number, item in enumerate(items):
        if number:
            parts.append(b",")
        parts.append(item)
        size += len(item) + 1
        if size >= PIECE:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join((*parts, end))
