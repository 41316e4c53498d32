"""Replays the recorded requests against a server, in order, and says how its answers differ from the recorded ones."""

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import yaml
from yarl import URL

from tests.golden.compare import Exchange, differences

RECORDING = Path(__file__).with_name("http.jsonl")
TOKENS = {"admin": "admin-token", "wrong": "wrong-token"}
FUTURE = "99999999"  # a revision that never comes: requests with it wait, whatever the others change meanwhile
LEARNED = ("uid", "resourceVersion", "continue", "serverRelativeURL")


class World(Protocol):
    """A server under test. Bearer tokens of `TOKENS["admin"]` are user admin, uid admin, group system:masters."""

    @property
    def url(self) -> str: ...

    async def settle(self) -> None:
        """Returns when what works behind the server is done: approved requests are signed."""


@cache
def exchanges() -> tuple[Exchange, ...]:
    records = [json.loads(line) for line in RECORDING.read_text().splitlines()]
    return tuple(Exchange(number, each["case"], each["request"], each["response"]) for number, each in enumerate(records))


def recorded_objects(number: int) -> list[dict[str, Any]]:
    """The items of a recorded list."""
    return list(exchanges()[number].response["body"]["items"])


@dataclass(slots=True)
class Replay:
    """The state of one run: from recorded values to ours."""

    world: World
    session: aiohttp.ClientSession
    known: dict[str, str] = field(default_factory=dict)
    found: dict[str, list[str]] = field(default_factory=dict)

    async def run(self) -> dict[str, list[str]]:
        """Differences by the name of the exchange; an empty list is an answer as recorded."""
        async with asyncio.TaskGroup() as waiting:
            for together in _grouped(exchanges()):
                if FUTURE in together[0].request["path"]:
                    waiting.create_task(self._exchanged(together))
                else:
                    await self._exchanged(together)
                    await self.world.settle()
        return self.found

    async def _exchanged(self, together: Iterable[Exchange]) -> None:
        answers = await asyncio.gather(*(self._send(exchange) for exchange in together))
        for exchange, (status, headers, content) in zip(together, answers, strict=True):
            self._learn(exchange.response.get("body", exchange.response.get("lines")), content)
            self.found[exchange.name] = list(differences(exchange, status, headers, content))

    async def _send(self, exchange: Exchange) -> tuple[int, Mapping[str, str], Any]:
        """The status, the headers, and the content: decoded JSON, a list of events, or text."""
        request = exchange.request
        headers = dict(request.get("headers") or {})
        if request.get("authorization"):
            headers["authorization"] = f"Bearer {TOKENS[request['authorization']]}"
        body = self._ours(request.get("body"))
        data = body if isinstance(body, str) or body is None else json.dumps(body)
        skip = () if "content-type" in headers else ("Content-Type",)
        url = self.world.url + self._path(request["path"])
        async with self.session.request(
            request["method"],
            URL(url, encoded=True),
            headers=headers,
            data=data.encode() if data else None,
            skip_auto_headers=skip,
            allow_redirects=False,
        ) as response:
            return response.status, response.headers, _content(await response.text(), response.content_type, exchange)

    def _path(self, path: str) -> str:
        for recorded, ours in self.known.items():
            if len(recorded) > 2 and recorded in path:
                path = path.replace(recorded, ours)
        return re.sub(r"timeoutSeconds=\d", "timeoutSeconds=1", path)

    def _ours(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: self._ours(part, key) for key, part in value.items()}
        if isinstance(value, list):
            return [self._ours(part, name) for part in value]
        return self.known.get(value, value) if name in LEARNED else value

    def _learn(self, recorded: Any, ours: Any) -> None:
        if isinstance(recorded, list) and isinstance(ours, list):
            for each, other in zip(recorded, ours, strict=False):
                self._learn(each, other)
        if not isinstance(recorded, dict) or not isinstance(ours, dict):
            return
        for name, value in recorded.items():
            other = ours.get(name)
            chance = name in LEARNED or (name == "name" and "generateName" in recorded)
            if chance and isinstance(value, str) and isinstance(other, str) and value:
                known, replaced = (
                    each.partition("hash=")[2] if name == "serverRelativeURL" else each for each in (value, other)
                )
                self.known[known] = replaced
            self._learn(value, other)


def _grouped(all_of_them: Iterable[Exchange]) -> Iterator[tuple[Exchange, ...]]:
    """One after the other; watches that follow each other change nothing, and are open for a second together."""
    for watches, group in groupby(all_of_them, lambda each: re.search("watch[=/]", each.request["path"]) is not None):
        if watches:
            yield tuple(group)
        else:
            yield from ((exchange,) for exchange in group)


def _content(text: str, media: str, exchange: Exchange) -> Any:
    if "lines" in exchange.response:
        return [json.loads(line) for line in text.splitlines() if line]
    if media == "application/yaml" or not text:
        return yaml.safe_load(text) if text else ""
    try:
        return json.loads(text)
    except ValueError:
        return text
