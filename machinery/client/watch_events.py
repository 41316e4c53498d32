"""Decoder for the body of a watch, an endless stream of JSON lines with one event each."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from machinery.client.errors import from_status, from_transport
from machinery.errors import UnavailableError

LONGEST_EVENT = 16 << 20


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """ADDED, MODIFIED, DELETED or BOOKMARK. An ERROR event is raised instead."""

    type: str
    object: dict[str, Any]


async def watch_events(server: str, response: aiohttp.ClientResponse) -> AsyncIterator[WatchEvent]:
    """The events of a watch response until it ends. `server` names it in errors. Raises the error of an ERROR event."""
    try:
        async for line in _lines(response):
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise from_status(event["object"])
            if not isinstance(event["object"]["metadata"], dict):
                raise TypeError("an object without metadata")  # noqa: TRY301 - one answer to all malformed events
            yield WatchEvent(event["type"], event["object"])
    except (aiohttp.ClientError, OSError) as error:
        raise from_transport(server, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"{server} sent something else than watch events") from error


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Complete lines; an incomplete last line is not an event."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > LONGEST_EVENT:
            raise ValueError("an event is too long")
