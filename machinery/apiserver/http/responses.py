"""Responses in the negotiated form. Stored bytes are spliced where possible and decoded only where necessary."""

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
"""Separate from the encoder: writing YAML takes a thousand times as long as compressing."""
MOST_YAML = 2 * 1024 * 1024
"""Largest JSON in bytes that is converted to YAML. A list can exceed it, an object cannot."""

Convert = Callable[[Document], Document]
"""Conversion from the stored version to the requested one."""


async def beside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` on the encoder thread, which only compression uses."""
    return await asyncio.get_running_loop().run_in_executor(_ENCODER, partial(work, *args, **kwargs))


def encode(value: Any, form: ResponseForm) -> bytes:
    """Encode a JSON value in the media type of the form."""
    if form.media == YAML:
        plain = msgspec.json.decode(msgspec.json.encode(value))
        text: str = yaml.dump(plain, Dumper=yaml.CSafeDumper, default_flow_style=False, allow_unicode=True)
        return text.encode()
    encoded = msgspec.json.encode(value)
    return msgspec.json.format(encoded, indent=2) + b"\n" if form.pretty else encoded


def item_bytes(stored: Stored, convert: Convert | None) -> bytes:
    """The object's bytes in the requested version."""
    return stored.document if convert is None else msgspec.json.encode(convert(msgspec.json.decode(stored.document)))


def spliced_list(envelope: Mapping[str, Any], items: Sequence[bytes]) -> bytes:
    """A list object around encoded documents."""
    return msgspec.json.encode(envelope)[:-1] + b',"items":[' + b",".join(items) + b"]}"


async def body_answer(request: web.Request, body: bytes, media: str, status: int = 200) -> web.Response:
    """A response, compressed when it is large and the client accepts gzip."""
    headers = {}
    if len(body) >= GZIP_FROM and takes_gzip(request.headers.get("Accept-Encoding", "")):
        big = len(body) >= _ON_A_THREAD_FROM
        body = await beside(gzip.compress, body, 1) if big else gzip.compress(body, 1)
        headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return web.Response(body=body, status=status, headers={"Content-Type": media, **headers})


async def json_answer(request: web.Request, body: bytes, form: ResponseForm, status: int = 200) -> web.Response:
    """Respond with JSON bytes, unchanged when the form allows it."""
    if form.media == JSON and not form.pretty:
        return await body_answer(request, body, JSON, status)
    return await value_answer(request, msgspec.Raw(body), form, status)


async def value_answer(request: web.Request, value: Any, form: ResponseForm, status: int = 200) -> web.Response:
    """Respond with a JSON value in the form. YAML is slow to write, so it is bounded and written on a thread.

    Raises NotAcceptableError for a read that is too large for YAML. A write is already done by then and is answered in JSON.
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
    """The error as a Status with Retry-After."""
    document = status_document(error)
    response = web.Response(body=encode(document, form), status=document["code"], headers={"Content-Type": form.media})
    if retry := document.get("details", {}).get("retryAfterSeconds"):
        response.headers["Retry-After"] = str(retry)
    if error.reason == "Forbidden":
        response.headers["X-Content-Type-Options"] = "nosniff"
    return response


LONGEST_WARNING, LONGEST_WARNINGS = 256, 4096
"""Longest single warning if there are several, and longest sum of a response, in characters: the limits of clients."""


def add_warnings(response: web.Response, warnings: Sequence[str]) -> None:
    """Add the warnings as headers, cut at the limits. Unprintable characters that the client sent are replaced."""
    left = LONGEST_WARNINGS
    for warning in warnings:
        printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in warning)
        shown = printable if len(warnings) == 1 else printable[:LONGEST_WARNING]
        left -= len(shown)
        if left < 0:
            return
        quoted = shown.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
