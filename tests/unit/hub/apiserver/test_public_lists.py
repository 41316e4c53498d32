"""The path of the revocation lists while the database hangs: answers in time, with what it said last, and nobody in a queue."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from hub.apiserver.lists import FRESH, KEPT, PATIENCE, RevocationLists
from machinery.apiserver.filters import Incoming
from machinery.apiserver.paths import attributes
from machinery.clock import Clock
from machinery.errors import UnavailableError
from tests.fakes.memory_store import MemoryStore
from tests.fakes.virtual_time import LoopClock, in_virtual_time
from tests.unit.hub.test_revocation_lists import TwoSigners

CALLERS = 20


class HangingStore(MemoryStore):
    """Answers as long as `hangs` is not set."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.hangs = False
        self.asked = 0

    async def read(self, query: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(10 * KEPT)
        return await super().read(query, *args, **kwargs)


async def nobody_else(_incoming: Incoming) -> web.StreamResponse:
    raise AssertionError("these paths are answered here")


async def asked(lists: RevocationLists) -> str:
    request = make_mocked_request("GET", "/crl")
    incoming = Incoming(request, "audit", attributes("GET", request.path, request.query), 0.0)
    try:
        answer = await lists(incoming, nobody_else)
    except UnavailableError as error:
        return error.reason
    assert isinstance(answer, web.Response)
    return str(answer.text)


def test_while_the_database_hangs_the_lists_that_it_gave_last_are_shown_for_a_while() -> None:
    async def scenario() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        store = HangingStore(clock)
        lists = RevocationLists(store, TwoSigners(), clock)
        first = await asked(lists)
        assert len(json.loads(first)["lists"]) == 2
        store.hangs = True
        await asyncio.sleep(2 * FRESH)
        assert await asked(lists) == first
        await asyncio.sleep(KEPT)
        assert await asked(lists) == "ServiceUnavailable"
        store.hangs = False
        await asyncio.sleep(2 * FRESH)
        assert await asked(lists) == first

    in_virtual_time(scenario())


def test_nobody_waits_longer_for_a_database_that_hangs_because_others_wait_too() -> None:
    async def scenario() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        store = HangingStore(clock)
        store.hangs = True
        lists = RevocationLists(store, TwoSigners(), clock)
        async with asyncio.timeout(PATIENCE + FRESH):
            said = await asyncio.gather(*(asked(lists) for _ in range(CALLERS)))
        assert set(said) == {"ServiceUnavailable"}
        assert store.asked == 1

    in_virtual_time(scenario())
