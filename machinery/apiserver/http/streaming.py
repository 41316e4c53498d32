"""Long lists: sent piece by piece as they are stored, so that the event loop turns in between and no copy of the whole is made.

The next piece goes out when the client has taken the one before, and is compressed on a thread for a client that takes gzip.
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
"""A list of fewer bytes goes out at once."""
_END = b"]}"
GZIP = 31
"""zlib's number for a gzip stream with the widest window."""


async def list_answer(
    request: web.Request, envelope: Mapping[str, Any], items: Sequence[bytes], form: ResponseForm
) -> web.StreamResponse:
    """A list object around documents that are bytes already."""
    size = sum(map(len, items))
    if size < LONG or form.media != JSON or form.pretty or request.method == "HEAD":
        return await json_answer(request, spliced_list(envelope, items), form)
    head = _head(envelope)
    length = len(head) + size + len(items) - 1 + len(_END)
    return await _sent(request, _at_once(_pieces(head, items)), length)


async def portions_answer(
    request: web.Request, envelope: Mapping[str, Any], portions: AsyncIterator[Sequence[bytes]]
) -> web.StreamResponse:
    """A list object in JSON around documents that come in portions, the next when the one before it has gone out."""
    return await _sent(request, _joined(_head(envelope), portions), None)


async def _sent(request: web.Request, pieces: AsyncIterator[bytes], length: int | None) -> web.StreamResponse:
    """`length` in bytes, where it is known."""
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
        return response  # the client has gone
    except BaseException:
        if request.transport is not None:
            request.transport.abort()  # half a list must not look like a whole one
        raise
    return response


def _head(envelope: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(envelope)[:-1] + b',"items":['


async def _at_once(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _joined(head: bytes, portions: AsyncIterator[Sequence[bytes]]) -> AsyncIterator[bytes]:
    """The whole list; a portion is let go of before the next is asked for."""
    between = head
    async for portion in portions:
        for piece in filter(None, _pieces(between, portion, end=b"")):
            yield piece
        between = b","
    yield _END


async def _plain(response: web.StreamResponse, pieces: AsyncIterator[bytes]) -> None:
    async for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0)  # a client that reads fast lets nobody wait for it


async def _compressed(response: web.StreamResponse, pieces: AsyncIterator[bytes]) -> None:
    stream = zlib.compressobj(1, zlib.DEFLATED, GZIP)
    async for piece in pieces:
        await response.write(await beside(stream.compress, piece))
    await response.write(stream.flush())


def _pieces(head: bytes, items: Sequence[bytes], end: bytes = _END) -> Iterator[bytes]:
    """Items after `head`, in parts of about PIECE, cut between documents."""
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
