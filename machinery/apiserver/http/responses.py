"""Responses in the negotiated form: a media type, and in it whole objects, only their metadata, or a table.

Stored bytes are inserted unchanged where possible and decoded only if necessary. Long lists are sent in pieces and never
indented, so that they do not block the event loop and the whole body is never copied. A piece is sent after the client has read
the previous piece. For clients that accept gzip, a thread compresses the pieces.
"""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec
from aiohttp import web

from machinery.apiserver.http.status_errors import status_document
from machinery.errors import MusterError, NotAcceptableError
from machinery.meta import bounded_json as boundedjson, bounded_yaml as boundedyaml
from machinery.meta.objects import Document, StoredObject

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
ACCEPTED = f"{JSON}, {YAML}, {PROTOBUF}"
LONGEST_PARSED = 4096
"""Characters of a header that are parsed. The rest is ignored, because parsing blocks the event loop."""


class ResponseShape(StrEnum):
    OBJECT = ""
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"
    PARTIAL_LIST = "PartialObjectMetadataList"


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """Form of the response. `version` is the version of the table or partial metadata."""

    media: str = JSON
    shape: ResponseShape = ResponseShape.OBJECT
    version: str = "v1"
    pretty: bool = False


@dataclass(frozen=True, slots=True)
class Clause:
    """One entry of an Accept header."""

    media: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    quality: float = 1.0


def clauses(accept: str) -> Iterator[Clause]:
    """Yield the entries of the header by descending quality. An empty header accepts everything."""
    found = [*_entries(accept)] or [Clause("*/*")]
    yield from sorted((clause for clause in found if clause.quality > 0), key=lambda clause: -clause.quality)


def _entries(header: str) -> Iterator[Clause]:
    for text in filter(str.strip, header[:LONGEST_PARSED].split(",")):
        media, *pairs = (part.strip() for part in text.split(";"))
        parameters = {name.strip(): value.strip() for name, _, value in (pair.partition("=") for pair in pairs)}
        try:
            quality = float(parameters.pop("q", "1"))
        except ValueError:
            quality = 1.0
        yield Clause(media.lower(), parameters, quality)


_SERVED = {
    **dict.fromkeys(("*/*", "application/*", JSON), JSON),
    **dict.fromkeys((YAML, "application/x-yaml", "text/yaml"), YAML),
}


def negotiate(accept: str, *, pretty: bool = False, shapes: bool = True) -> ResponseForm:
    """Return the first form of the header that can be served. Raises NotAcceptableError.

    `shapes`: whether tables and partial metadata are available. If not, clauses that request them are ignored.
    """
    for clause in clauses(accept):
        media, wanted, version = _SERVED.get(clause.media), clause.parameters.get("as", ""), clause.parameters.get("v", "")
        if media is None:
            continue
        if not wanted:
            return ResponseForm(media, pretty=pretty)
        known = wanted in set(ResponseShape) and clause.parameters.get("g") == "meta.k8s.io" and version in ("v1", "v1beta1")
        if shapes and known:
            return ResponseForm(media, ResponseShape(wanted), version, pretty)
    raise NotAcceptableError(f"only the following media types are accepted: {ACCEPTED}")


_FOR_PEOPLE = ("curl", "Wget", "Mozilla/5.0")
_FALSE = ("0", "f", "F", "false", "False", "FALSE")


def is_pretty(asked: str | None, user_agent: str) -> bool:
    """Return whether to indent the response. `asked`: the parameter `pretty`; None: indent for browsers, curl and wget."""
    if asked:
        return asked not in _FALSE
    return asked == "" or user_agent.startswith(_FOR_PEOPLE)


def takes_gzip(accept_encoding: str) -> bool:
    """Whether a client accepts gzip, by name or by `*`, with a quality above 0."""
    wanted = {part.media: part.quality for part in _entries(accept_encoding)}
    return wanted.get("gzip", wanted.get("*", 0)) > 0


def etag_matches(if_none_match: str, etag: str) -> bool:
    """Whether If-None-Match contains `etag`, weak or strong, or `*`."""
    known = [entry.strip().removeprefix("W/") for entry in if_none_match[:LONGEST_PARSED].split(",")]
    return etag in known or "*" in known


P = ParamSpec("P")
T = TypeVar("T")
GZIP_FROM = 128 * 1024
_ON_A_THREAD_FROM = 1024 * 1024
_ENCODER = ThreadPoolExecutor(1, thread_name_prefix="encoder")
_YAML_WRITER = ThreadPoolExecutor(1, thread_name_prefix="yaml-writer")
"""Separate from the encoder thread, because writing YAML takes a thousand times as long as compressing."""
MOST_YAML = 2 * 1024 * 1024
"""Largest JSON in bytes that is converted to YAML. Lists can exceed this size; objects cannot."""

Convert = Callable[[Document], Document]


NOT_FOUND = "404 page not found\n"


def no_such_page() -> web.Response:
    headers = {"X-Content-Type-Options": "nosniff"}
    return web.Response(text=NOT_FOUND, status=404, content_type="text/plain", charset="utf-8", headers=headers)


async def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` on the encoder thread. Only compression uses this thread."""
    return await asyncio.get_running_loop().run_in_executor(_ENCODER, partial(work, *args, **kwargs))


def encode(value: Any, form: ResponseForm) -> bytes:
    """Encode a JSON value in the media type of the form."""
    if form.media == YAML:
        plain = msgspec.json.decode(msgspec.json.encode(value))
        return boundedyaml.write(plain, sort_keys=True).encode()
    encoded = msgspec.json.encode(value)
    return msgspec.json.format(encoded, indent=2) + b"\n" if form.pretty else encoded


def item_bytes(stored: StoredObject, convert: Convert | None) -> bytes:
    """Return the object's JSON in the requested version. `convert`: converts to it; None: objects are stored in it."""
    return stored.encoded if convert is None else msgspec.json.encode(convert(msgspec.json.decode(stored.encoded)))


def encode_list(envelope: Mapping[str, Any], items: Sequence[bytes]) -> bytes:
    """Return the JSON of a list. `envelope`: the list without `items`; `items`: the encoded objects."""
    return _head(envelope) + b",".join(items) + _END


async def body_answer(request: web.Request, body: bytes, media: str, status: int = 200) -> web.Response:
    """Respond with `body`, compressed if it is large and the client accepts gzip."""
    headers = {}
    if len(body) >= GZIP_FROM and takes_gzip(request.headers.get("Accept-Encoding", "")):
        big = len(body) >= _ON_A_THREAD_FROM
        body = await run_in_thread(gzip.compress, body, 1) if big else gzip.compress(body, 1)
        headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return web.Response(body=body, status=status, headers={"Content-Type": media, **headers})


async def json_answer(request: web.Request, body: bytes, form: ResponseForm, status: int = 200) -> web.Response:
    """Respond with JSON bytes, converted only if the form is not JSON."""
    if form.media == JSON and not form.pretty:
        return await body_answer(request, body, JSON, status)
    return await value_answer(request, msgspec.Raw(body), form, status)


async def value_answer(request: web.Request, value: Any, form: ResponseForm, status: int = 200) -> web.Response:
    """Respond with a JSON value in the form. A thread writes YAML, because this is slow.

    If the value is too large for YAML, a read raises NotAcceptableError. A write gets a JSON response, because it is already
    done.
    """
    if form.media != YAML:
        return await body_answer(request, encode(value, form), form.media, status)
    plain = msgspec.json.encode(value)
    if len(plain) > MOST_YAML or boundedjson.count_values(plain) > boundedjson.MOST_VALUES:
        if request.method not in ("GET", "HEAD"):
            return await body_answer(request, plain, JSON, status)
        bounds = f"{MOST_YAML} bytes and {boundedjson.MOST_VALUES} values"
        raise NotAcceptableError(
            f"an answer of more than {bounds} is not available as YAML: request {JSON}, or pages with limit"
        )
    body = await asyncio.get_running_loop().run_in_executor(_YAML_WRITER, encode, value, form)
    return await body_answer(request, body, YAML, status)


def error_answer(error: MusterError, form: ResponseForm) -> web.Response:
    """Respond with the error as a Status, and with Retry-After if the error has a delay."""
    document = status_document(error)
    response = web.Response(body=encode(document, form), status=document["code"], headers={"Content-Type": form.media})
    if retry := document.get("details", {}).get("retryAfterSeconds"):
        response.headers["Retry-After"] = str(retry)
    if error.reason == "Forbidden":
        response.headers["X-Content-Type-Options"] = "nosniff"
    return response


LONGEST_WARNING, LONGEST_WARNINGS = 256, 4096
"""Longest warning if there are several, and longest sum of all warnings, in characters. Clients have these limits."""


def add_warnings(response: web.Response, warnings: Sequence[str]) -> None:
    """Add the warnings as headers, truncated to the limits. Replace unprintable characters, which a client may have sent."""
    left = LONGEST_WARNINGS
    for warning in warnings:
        printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in warning)
        shown = printable if len(warnings) == 1 else printable[:LONGEST_WARNING]
        left -= len(shown)
        if left < 0:
            return
        quoted = shown.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')


PIECE = 256 * 1024
LONG = 2 * PIECE
"""Lists of fewer bytes are sent in one piece."""
_END = b"]}"
GZIP = 31
"""The value of zlib's `wbits` for a gzip stream with the largest window."""


async def list_answer(
    request: web.Request, envelope: Mapping[str, Any], items: Sequence[bytes], form: ResponseForm
) -> web.StreamResponse:
    size = sum(map(len, items))
    if size < LONG or form.media != JSON or request.method == "HEAD":
        return await json_answer(request, encode_list(envelope, items), form)
    length = len(_head(envelope)) + size + len(items) - 1 + len(_END)

    async def at_once() -> AsyncIterator[Sequence[bytes]]:
        yield items

    return await _sent(request, _joined(_head(envelope), at_once()), length)


async def portions_answer(
    request: web.Request, envelope: Mapping[str, Any], portions: AsyncIterator[Sequence[bytes]]
) -> web.StreamResponse:
    """Respond with a JSON list. Read each portion of documents only after the previous one was sent."""
    return await _sent(request, _joined(_head(envelope), portions), None)


async def _sent(request: web.Request, pieces: AsyncIterator[bytes], length: int | None) -> web.StreamResponse:
    """Send the pieces. `length`: size in bytes; None: unknown."""
    response = web.StreamResponse(headers={"Content-Type": JSON})
    compressing = takes_gzip(request.headers.get("Accept-Encoding", ""))
    if compressing:
        response.headers.update({"Content-Encoding": "gzip", "Vary": "Accept-Encoding"})
    elif length is not None:
        response.content_length = length
    try:
        await response.prepare(request)
        stream = zlib.compressobj(1, zlib.DEFLATED, GZIP)
        async for piece in pieces:
            if compressing:
                await response.write(await run_in_thread(stream.compress, piece))
            else:
                await response.write(piece)
                await asyncio.sleep(0)  # otherwise a fast client would block the event loop
        if compressing:
            await response.write(stream.flush())
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


async def _joined(head: bytes, portions: AsyncIterator[Sequence[bytes]]) -> AsyncIterator[bytes]:
    """Yield the pieces of the whole list. A portion is released before the next one is read."""
    between = head
    async for portion in portions:
        for piece in filter(None, _pieces(between, portion)):
            yield piece
        between = b","
    yield _END


def _pieces(head: bytes, items: Sequence[bytes]) -> Iterator[bytes]:
    """Yield `head` and the items in pieces of about PIECE bytes. A piece ends after a whole document."""
    parts, size = [head], len(head)
    for number, item in enumerate(items):
        if number:
            parts.append(b",")
        parts.append(item)
        size += len(item) + 1
        if size >= PIECE:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)
