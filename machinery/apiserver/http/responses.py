"""Answers in the form that was asked for: splices stored bytes where it can, decodes only where it must."""

import asyncio
import gzip
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec
import yaml
from aiohttp import web

from machinery.apiserver.http.negotiation import JSON, YAML, ResponseForm, takes_gzip
from machinery.apiserver.http.status_errors import status_document
from machinery.apiserver.storage import Document, Stored
from machinery.errors import MusterError, NotAcceptableError
from machinery.meta import bounded_json as boundedjson

P = ParamSpec("P")
T = TypeVar("T")
GZIP_FROM = 128 * 1024
_ON_A_THREAD_FROM = 1024 * 1024
_ENCODER = ThreadPoolExecutor(1, thread_name_prefix="encoder")
_YAML_WRITER = ThreadPoolExecutor(1, thread_name_prefix="yaml-writer")
"""Not the encoder: writing YAML takes a thousand times as long as compressing."""
MOST_YAML = 2 * 1024 * 1024
"""Bytes of JSON that are written as YAML: a list may have many more, an object never has."""

Convert = Callable[[Document], Document]
"""From the stored version to the one asked for."""


async def beside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Compresses on one thread, which nothing else waits for: log, audit and shutdown have threads of their own."""
    return await asyncio.get_running_loop().run_in_executor(_ENCODER, partial(work, *args, **kwargs))


def encode(value: Any, form: ResponseForm) -> bytes:
    """A JSON value in the media type of the form."""
    if form.media == YAML:
        plain = msgspec.json.decode(msgspec.json.encode(value))
        text: str = yaml.dump(plain, Dumper=yaml.CSafeDumper, default_flow_style=False, allow_unicode=True)
        return text.encode()
    encoded = msgspec.json.encode(value)
    return msgspec.json.format(encoded, indent=2) + b"\n" if form.pretty else encoded


def item_bytes(stored: Stored, convert: Convert | None) -> bytes:
    """The object as it is served."""
    return stored.document if convert is None else msgspec.json.encode(convert(msgspec.json.decode(stored.document)))


def spliced_list(envelope: Mapping[str, Any], items: Sequence[bytes]) -> bytes:
    """A list object around documents that are bytes already."""
    return msgspec.json.encode(envelope)[:-1] + b',"items":[' + b",".join(items) + b"]}"


async def body_answer(request: web.Request, body: bytes, media: str, status: int = 200) -> web.Response:
    """A response, compressed when it is big and the client takes gzip."""
    headers = {}
    if len(body) >= GZIP_FROM and takes_gzip(request.headers.get("Accept-Encoding", "")):
        big = len(body) >= _ON_A_THREAD_FROM
        body = await beside(gzip.compress, body, 1) if big else gzip.compress(body, 1)
        headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return web.Response(body=body, status=status, headers={"Content-Type": media, **headers})


async def json_answer(request: web.Request, body: bytes, form: ResponseForm, status: int = 200) -> web.Response:
    """JSON bytes, spliced as they are when the form allows it."""
    if form.media == JSON and not form.pretty:
        return await body_answer(request, body, JSON, status)
    return await value_answer(request, msgspec.Raw(body), form, status)


async def value_answer(request: web.Request, value: Any, form: ResponseForm, status: int = 200) -> web.Response:
    """A JSON value in the form. YAML is slow to write, so that happens on a thread, and is bounded.

    Raises NotAcceptableError for a read that is too large for YAML. A write has been done by then: its answer is JSON.
    """
    if form.media != YAML:
        return await body_answer(request, encode(value, form), form.media, status)
    plain = msgspec.json.encode(value)
    if len(plain) > MOST_YAML or boundedjson.count_values(plain) > boundedjson.MOST_VALUES:
        if request.method not in ("GET", "HEAD"):
            return await body_answer(request, plain, JSON, status)
        bounds = f"{MOST_YAML} bytes and {boundedjson.MOST_VALUES} values"
        raise NotAcceptableError(
            f"an answer of more than {bounds} is not written as YAML: ask for {JSON}, or for pages by limit"
        )
    body = await asyncio.get_running_loop().run_in_executor(_YAML_WRITER, encode, value, form)
    return await body_answer(request, body, YAML, status)


def error_answer(error: MusterError, form: ResponseForm) -> web.Response:
    """The error as a Status, with its Retry-After."""
    document = status_document(error)
    response = web.Response(body=encode(document, form), status=document["code"], headers={"Content-Type": form.media})
    if retry := document.get("details", {}).get("retryAfterSeconds"):
        response.headers["Retry-After"] = str(retry)
    if error.reason == "Forbidden":
        response.headers["X-Content-Type-Options"] = "nosniff"
    return response


LONGEST_WARNING, LONGEST_WARNINGS = 256, 4096
"""What clients take, in characters: of one warning, where others follow, and of all of a response."""


def add_warnings(response: web.Response, warnings: Sequence[str]) -> None:
    """The warnings as headers. They repeat what a client sent: what has no place in a header is left out of them."""
    left = LONGEST_WARNINGS
    for warning in warnings:
        printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in warning)
        shown = printable if len(warnings) == 1 else printable[:LONGEST_WARNING]
        left -= len(shown)
        if left < 0:
            return
        quoted = shown.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
