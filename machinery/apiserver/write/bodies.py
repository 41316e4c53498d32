"""Decodes request bodies: JSON, YAML and the protobuf encoding of a few kinds. Bounds apply before a document is built.

Each format has bounds within which the worst body is parsed in 20 ms (`make bench ARGS=bodies`). They are necessary even for
work on a thread, because Python threads share one interpreter lock with the event loop. YAML and applied configurations are
parsed on one dedicated thread.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from aiohttp import web

from machinery.apiserver.http.responses import ACCEPTED, JSON, PROTOBUF
from machinery.apiserver.write import protobuf
from machinery.apiserver.write.protobuf import MESSAGES
from machinery.errors import BadRequestError, TooLargeError, UnsupportedMediaTypeError
from machinery.meta import bounded_json as boundedjson, bounded_yaml as boundedyaml
from machinery.meta.bounded_json import JsonError
from machinery.meta.bounded_yaml import YamlError

ANONYMOUS_LIMIT = 64 * 1024
"""Largest body of a caller without a credential, in bytes. Such a body must be JSON."""
MOST_APPLIED = 20_000
"""Most values in an applied configuration in JSON. The bound exists because the search for duplicate fields is slow."""

_YAML = ("application/yaml", "application/x-yaml", "text/yaml")
_PARSER = ThreadPoolExecutor(1, thread_name_prefix="parser")


async def read(request: web.Request, limit: int, *, anonymous: bool) -> bytes:
    """Return the body. Raises TooLargeError, UnsupportedMediaTypeError for a compressed or an anonymous non-JSON body."""
    limit = min(limit, ANONYMOUS_LIMIT) if anonymous else limit
    too_large = TooLargeError(f"Request entity too large: limit is {limit}")
    if request.headers.get("Content-Encoding", "").lower() not in ("", "identity"):
        raise UnsupportedMediaTypeError("a compressed body is not accepted: send it without Content-Encoding")
    if anonymous and request.can_read_body and media_type(request) != JSON:
        raise UnsupportedMediaTypeError(f"a body without a credential is not accepted unless it is {JSON}")
    if (request.content_length or 0) > limit:
        raise too_large
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    if len(body) > limit:
        raise too_large
    return body


def media_type(request: web.Request) -> str:
    """Return the media type of the body, JSON without Content-Type. aiohttp would parse a long header for many seconds."""
    return request.headers.get("Content-Type", JSON).partition(";")[0].strip().lower()


async def decode(body: bytes, media: str, expected: str) -> dict[str, Any]:
    """Decode the body as an object of kind `expected`. Raises BadRequestError, UnsupportedMediaTypeError."""
    if media in _YAML:
        try:
            return _object(await _parsed(lambda: _plain(boundedyaml.load(body, boundedyaml.REQUEST))), expected)
        except (YamlError, OverflowError) as error:
            raise _unrecognized(expected, f"yaml parse error: {error}") from None
    if media == JSON:
        return _object(decode_json(body, expected), expected)
    message = protobuf.decode(body, MESSAGES) if media == PROTOBUF else None
    if message is None:
        raise UnsupportedMediaTypeError(
            f"the body of the request was in an unknown format - accepted media types include: {ACCEPTED}"
        )
    return message


def decode_json(body: bytes, expected: str) -> Any:
    """Decode any JSON value. Raises BadRequestError, whose message names the `expected` kind."""
    try:
        return boundedjson.decode(body)
    except JsonError as error:
        raise _unrecognized(expected, f"json parse error: {error}") from None


async def decode_configuration(body: bytes) -> tuple[dict[str, Any], list[str]]:
    """Decode an applied configuration in JSON or YAML. Return it and its duplicate fields. Raises BadRequestError."""
    twice: list[str] = []
    is_json = body.lstrip()[:1] == b"{"
    try:
        loaded = await _parsed(
            lambda: _load_json(body, twice) if is_json else _plain(boundedyaml.load(body, boundedyaml.REQUEST, twice))
        )
    except YamlError as error:
        raise BadRequestError(f"error decoding patch: yaml parse error: {error}") from None
    except JsonError as error:
        raise BadRequestError(f"error decoding patch: json parse error: {error}") from None
    except (RecursionError, ValueError, TypeError, OverflowError):
        raise BadRequestError("error decoding patch: it is neither JSON nor YAML") from None
    if not isinstance(loaded, dict):
        raise BadRequestError("error decoding patch: a configuration is an object")
    return loaded, twice


async def _parsed(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(_PARSER, work)


def _load_json(body: bytes, twice: list[str]) -> Any:
    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            times = Counter(name for name, _ in pairs)
            twice.extend(f'duplicate field "{name}"' for name in found if times[name] > 1)
        return found

    boundedjson.check_values(body, MOST_APPLIED)
    loaded = json.loads(body, object_pairs_hook=build_object)
    boundedjson.check_depth(loaded)
    return _plain(loaded)


def _plain(loaded: Any) -> Any:
    """Convert a YAML value to JSON values. Raises an error for a value that JSON does not have."""
    return msgspec.json.decode(msgspec.json.encode(loaded))


def _unrecognized(expected: str, why: str) -> BadRequestError:
    return BadRequestError(
        f"the object provided is unrecognized (must be of type {expected}): couldn't get version/kind; {why}"
    )


def _object(value: Any, expected: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unrecognized(expected, "the body is not an object")
    return value
