"""Request bodies as documents: JSON, YAML and the protobuf of a few kinds, bounded in size and in what they may unfold to."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml
from aiohttp import web

from machinery.apiserver import protobuf
from machinery.apiserver.messages import MESSAGES
from machinery.apiserver.negotiation import ACCEPTED, JSON, PROTOBUF
from machinery.errors import BadRequestError, TooLargeError, UnsupportedMediaTypeError

_YAML = ("application/yaml", "application/x-yaml", "text/yaml")


class _Loader(yaml.CSafeLoader):
    """YAML as JSON's data model: a timestamp stays a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _load(body: bytes) -> Any:
    """Refuses aliases: a few lines of them unfold to gigabytes."""
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(body, Loader=_Loader)):
        raise BadRequestError("YAML aliases are not accepted")
    loaded = yaml.load(body, Loader=_Loader)  # noqa: S506 - a safe loader that knows fewer types
    return msgspec.json.decode(msgspec.json.encode(loaded))  # keys become text, what JSON does not know is refused


async def read(request: web.Request, limit: int) -> bytes:
    """The body. Raises TooLargeError above `limit`."""
    too_large = TooLargeError(f"Request entity too large: limit is {limit}")
    if (request.content_length or 0) > limit:
        raise too_large
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None


def media_type(request: web.Request) -> str:
    """The type of the body; JSON when nothing is said."""
    return request.content_type.lower() if "Content-Type" in request.headers else JSON


async def decode(body: bytes, media: str, expected: str) -> dict[str, Any]:
    """The body as an object of kind `expected`. Raises BadRequestError, UnsupportedMediaTypeError."""
    if media in _YAML:
        return _object(await decode_yaml(body, expected), expected)
    if media == JSON:
        return _object(decode_json(body, expected), expected)
    message = protobuf.decode(body, MESSAGES) if media == PROTOBUF else None
    if message is None:
        raise UnsupportedMediaTypeError(
            f"the body of the request was in an unknown format - accepted media types include: {ACCEPTED}"
        )
    return message


def decode_json(body: bytes, expected: str) -> Any:
    """Any JSON value. The message says where it breaks and never repeats the body, which may hold a secret."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        why = "unexpected end of JSON input" if not body else str(error)
        raise _unrecognized(expected, f"json parse error: {why}") from None


async def decode_yaml(body: bytes, expected: str) -> Any:
    """Any YAML value of JSON's data model, read on a thread."""
    try:
        return await asyncio.to_thread(_load, body)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise _unrecognized(expected, f"yaml parse error{where}") from None


async def decode_configuration(body: bytes) -> tuple[dict[str, Any], list[str]]:
    """An applied configuration, JSON or YAML, and the fields that it says twice. Raises BadRequestError."""
    loads = _load_json if body.lstrip()[:1] == b"{" else _load_noting
    try:
        loaded, twice = await asyncio.to_thread(loads, body)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise BadRequestError(f"error decoding patch: yaml parse error{where}") from None
    except (RecursionError, ValueError, TypeError):
        raise BadRequestError("error decoding patch: it is neither JSON nor YAML") from None
    if not isinstance(loaded, dict):
        raise BadRequestError("error decoding patch: a configuration is an object")
    return loaded, twice


def _load_json(body: bytes) -> tuple[Any, list[str]]:
    twice: list[str] = []

    def noting(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            times = Counter(name for name, _ in pairs)
            twice.extend(f'duplicate field "{name}"' for name in found if times[name] > 1)
        return found

    loaded = json.loads(body, object_pairs_hook=noting)
    return msgspec.json.decode(msgspec.json.encode(loaded)), twice  # what is no text is refused, as in YAML


def _load_noting(body: bytes) -> tuple[Any, list[str]]:
    loaded = _load(body)
    return loaded, sorted({f'line {line}: key "{name}" already set in map' for name, line in _repeated(body)})


def _repeated(body: bytes) -> Iterator[tuple[str, int]]:
    """Keys that a YAML mapping has twice, with their lines."""
    waiting = [yaml.compose(body, Loader=_Loader)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        yield key.value, key.start_mark.line + 1
                    seen.add(key.value)
                waiting.append(value)


def _unrecognized(expected: str, why: str) -> BadRequestError:
    return BadRequestError(
        f"the object provided is unrecognized (must be of type {expected}): couldn't get version/kind; {why}"
    )


def _object(value: Any, expected: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unrecognized(expected, "the body is not an object")
    return value
