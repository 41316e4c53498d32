"""The limits of the HTTPS door from outside: full levels, waiting, watches, deadlines and bodies."""

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from machinery.apiserver.access import Attributes, Authenticator
from machinery.apiserver.http.filters import LEVEL_HEADER, Filters, Limiting
from machinery.apiserver.http.limits import BODY_LIMIT, Pool, Pools, PriorityLevel, Rates
from machinery.apiserver.resource import selectable_fields
from machinery.apiserver.server import RequestBounds
from machinery.apiserver.storage import Actor, GroupResource
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.meta.objects import Page, Query
from machinery.runtime.clock import SystemClock
from tests.fakes.stage import until
from tests.integration.test_apiserver import GROUPS, THINGS, Client, running, thing

REQUEST = timedelta(seconds=2)
LONG = timedelta(hours=1)
"""Longer than any test may take."""


class ByHeader(Authenticator):
    """Whoever the header names."""

    async def authenticate(self, request: web.Request) -> Actor:
        return Actor(request.headers.get("X-User", "bob"))


class SlowStorage(MemoryStorage):
    """Lists wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__(selectable_fields(GROUPS))
        self.gate = asyncio.Event()
        self.gate.set()

    async def list(self, resource: GroupResource, query: Query) -> Page:
        await self.gate.wait()
        return await super().list(resource, query)


@dataclass
class Stage:
    """A server with four seats for reads and one for writes, and its storage."""

    client: Client
    storage: SlowStorage
    pools: Pools

    async def ask(self, user: str, path: str = THINGS, method: str = "GET", body: Any = None) -> aiohttp.ClientResponse:
        response = await self.client.session.request(
            method, self.client.url + path, json=body, headers={"X-User": user, "Content-Type": "application/json"}
        )
        await response.read()
        return response

    async def fill(self, count: int) -> list["asyncio.Task[aiohttp.ClientResponse]"]:
        """Slow reads, as many at once."""
        self.storage.gate.clear()
        tasks = [asyncio.create_task(self.ask(f"user-{number}")) for number in range(count)]
        await until(lambda: self.pools["read"].snapshot()["taken"] == count)
        return tasks


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged(REQUEST) as made:
        yield made


@pytest.fixture
async def patient() -> AsyncIterator[Stage]:
    async with staged(LONG) as made:
        yield made


@asynccontextmanager
async def staged(request: timedelta) -> AsyncIterator[Stage]:
    clock, storage = SystemClock(), SlowStorage()
    pools = Pools((PriorityLevel("exempt"), PriorityLevel("read", 4, each=1), PriorityLevel("write", 1)), clock)

    def place(actor: Actor, asked: Attributes) -> tuple[Pool, str]:
        if actor.user == "admin":
            return pools["exempt"], ""
        return pools["read" if asked.verb in ("get", "list", "watch") else "write"], actor.user

    filters = Filters(limits=(Limiting(place, Rates(0, 1, clock), clock, request),))
    limits = RequestBounds(request=request)
    async with running(storage, filters=filters, authenticator=ByHeader(), limits=limits) as client:
        yield Stage(client, storage, pools)
        storage.gate.set()


async def test_a_request_that_waits_is_answered_when_a_seat_is_free_and_leaves_no_trace_when_its_client_goes(
    patient: Stage,
) -> None:
    slow = await patient.fill(4)
    leaving, waiting = (asyncio.create_task(patient.ask(name)) for name in ("first", "next"))
    await until(lambda: patient.pools["read"].snapshot()["waiting"] == 2)
    leaving.cancel()
    await until(lambda: patient.pools["read"].snapshot()["waiting"] == 1)
    patient.storage.gate.set()
    assert (await waiting).status == 200
    await asyncio.gather(*slow)
    assert patient.pools["read"].snapshot()["taken"] == 0


async def test_who_waits_does_so_for_a_quarter_of_the_time_that_the_request_has(
    patient: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, waits = Pool.take, list[float]()

    async def noted(pool: Pool, identity: str, patience: timedelta) -> None:
        waits.append(patience.total_seconds())
        await take(pool, identity, patience)

    slow = await patient.fill(4)
    monkeypatch.setattr(Pool, "take", noted)
    assert (await patient.ask("next", f"{THINGS}?timeout=2s")).status == 429
    patient.storage.gate.set()
    await asyncio.gather(*slow)
    assert (await patient.ask("next")).status == 200
    assert 0 <= waits[0] <= 0.5
    quarter = LONG.total_seconds() / 4
    assert quarter / 2 < waits[1] <= quarter


async def test_a_watch_has_a_seat_only_until_it_has_begun(stage: Stage) -> None:
    async with AsyncExitStack() as open_ones:
        for number in range(6):
            path = f"{THINGS}?watch=1&resourceVersion=0&timeoutSeconds=60"
            asking = stage.client.session.get(stage.client.url + path, headers={"X-User": f"user-{number}"})
            response = await open_ones.enter_async_context(asking)
            assert response.status == 200
            assert response.headers[LEVEL_HEADER] == stage.pools["read"].uid
        assert stage.pools["read"].snapshot()["taken"] == 0
        assert (await stage.ask("next")).status == 200


async def test_a_timeout_that_is_none_is_refused(stage: Stage) -> None:
    for asked in ("soon", "1", "1x", "s", "-", "1e3s", "99999999h", "0x1s", "1s "):
        answer = await stage.ask("bob", f"{THINGS}?timeout={asked}")
        status = await answer.json()
        assert (answer.status, status["reason"]) == (400, "BadRequest"), asked
        assert "invalid timeout specified in the request URL" in status["message"]
    asked = "soon"
    assert (await stage.ask("bob", f"{THINGS}?watch=1&timeoutSeconds=1&timeout={asked}")).status == 200


async def test_a_request_ends_at_its_own_timeout_which_is_the_longest_when_it_is_nothing_or_too_much(stage: Stage) -> None:
    stage.storage.gate.clear()
    loop = asyncio.get_running_loop()

    async def took(asked: str) -> float:
        began = loop.time()
        answer = await stage.ask("admin", f"{THINGS}?timeout={asked.replace('+', '%2B')}")
        status = await answer.json()
        assert (answer.status, status["kind"], status["reason"]) == (504, "Status", "Timeout"), asked
        return loop.time() - began

    own = ("300ms", ".3s", "0.3s", "300000us", "300000µs", "0.1s200ms")
    times = await asyncio.gather(*map(took, (*own, "0", "-0", "0s", "-5s", "3h", "+1h", "2562047h")))
    assert min(times) > 0.27
    assert min(times[len(own) :]) > REQUEST.total_seconds() * 0.9


def big_thing(size: int) -> bytes:
    """The JSON of a thing, of exactly this many bytes, most of them blanks: an object is not as large as a body may be."""
    return json.dumps(thing("big", unit="a")).encode().ljust(size)


async def chunks(content: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(content), 64 * 1024):
        yield content[begin : begin + 64 * 1024]


async def test_a_body_of_the_limit_is_read_and_one_byte_more_is_refused(stage: Stage) -> None:
    answers = []
    for size in (BODY_LIMIT + 1, BODY_LIMIT):
        content = big_thing(size)
        assert len(content) == size
        for body in (io.BytesIO(content), chunks(content)):
            headers = {"Content-Type": "application/json"}
            async with stage.client.session.post(stage.client.url + THINGS, data=body, headers=headers) as response:
                answers.append((response.status, (await response.json())["reason"] if response.status != 201 else ""))
    assert answers == [(413, "RequestEntityTooLarge")] * 2 + [(201, ""), (409, "AlreadyExists")]


async def test_a_compressed_body_is_refused_whatever_it_unfolds_to(stage: Stage) -> None:
    packed = gzip.compress(b" " * 20 * BODY_LIMIT)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with stage.client.session.post(stage.client.url + THINGS, data=packed, headers=headers) as response:
        assert response.status == 415


async def test_copies_of_a_patch_are_bounded_as_bodies_are(stage: Stage) -> None:
    document = thing("a", unit="u" * 100_000)
    assert (await stage.ask("admin", THINGS, "POST", document)).status == 201
    copies = [{"op": "copy", "from": "/spec/unit", "path": f"/metadata/annotations/a{number}"} for number in range(40)]
    patch = [{"op": "add", "path": "/metadata/annotations", "value": {}}, *copies]
    headers = {"X-User": "admin", "Content-Type": "application/json-patch+json"}
    async with stage.client.session.patch(f"{stage.client.url}{THINGS}/a", data=json.dumps(patch), headers=headers) as response:
        assert response.status == 413
