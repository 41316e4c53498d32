"""Watches at a stop: they end evenly and whole, nobody's last event is lost, and who does not read holds up nobody."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import aiohttp
import pytest

from machinery.apiserver.access import AllowEverything, EveryoneIsAdmin
from machinery.apiserver.draining import Draining
from machinery.apiserver.filters import Filters
from machinery.apiserver.kinds.core import CONFIG_MAP
from machinery.apiserver.memory import MemoryStorage
from machinery.apiserver.resource import Group, selectable_fields
from machinery.apiserver.server import ApiServer
from machinery.apiserver.serving import serve
from machinery.apiserver.storage import Actor, Key
from machinery.clock import SystemClock
from machinery.pacing import LEAST_RATE
from tests.trials import soaked, trials

GROUPS = (Group("", (CONFIG_MAP,)),)
WATCHES = trials(test=100, soak=2_000)
GRACE = timedelta(seconds=trials(test=3, soak=10))
ADMIN = Actor("admin")


class Stage:
    def __init__(self, server: ApiServer, storage: MemoryStorage, draining: Draining, url: str) -> None:
        self.server = server
        self.storage = storage
        self.draining = draining
        self.url = url

    async def write(self, name: str, size: int = 1) -> int:
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": "y" * size}}
        return (await self.storage.create(CONFIG_MAP.key, Key("default", name), document, ADMIN)).revision


async def every(_namespace: str) -> bool:
    return True


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    storage, draining = MemoryStorage(selectable_fields(GROUPS)), Draining()
    server = ApiServer(
        GROUPS,
        storage,
        authenticator=EveryoneIsAdmin(),
        authorizer=AllowEverything(),
        clock=SystemClock(),
        version={"gitVersion": "v0"},
        namespaces=every,
        filters=Filters(gate=(draining.gate,), in_flight=(draining.counted,)),
    )
    listening = await serve(server.application(), "127.0.0.1", 0)
    yield Stage(server, storage, draining, f"http://127.0.0.1:{listening.port}")
    await listening.close(timedelta())


async def watched(session: aiohttp.ClientSession, url: str, after: int = 0) -> tuple[list[str], float]:
    """The names of the objects that one watch tells, and when it ended. Raises when its last line is torn."""
    place = f"&resourceVersion={after}" if after else ""
    async with session.get(f"{url}/api/v1/configmaps?watch=1{place}") as response:
        assert response.status == 200
        names = [json.loads(line)["object"]["metadata"]["name"] async for line in response.content]
    return names, asyncio.get_running_loop().time()


@soaked(WATCHES)
async def test_watches_end_evenly_and_whole_and_the_rest_is_told_to_the_next_watch() -> None:
    async with stage() as subject, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        first = await subject.write("first")
        watching = [asyncio.create_task(watched(session, subject.url)) for _ in range(WATCHES)]
        async with asyncio.timeout(60):
            while len(subject.server.watches) < WATCHES:  # noqa: ASYNC110 - they tell nobody
                await asyncio.sleep(0.01)
        assert subject.server.watches.by_resource() == {"configmaps": WATCHES}
        draining = asyncio.create_task(subject.server.watches.drain(GRACE))
        await subject.write("while it drains")
        before = asyncio.get_running_loop().time()
        await draining
        took = asyncio.get_running_loop().time() - before
        await subject.write("afterwards")
        ended = await asyncio.gather(*watching)

        async with stage_again(subject) as url:
            for names, _ in ended:
                assert names in (["first"], ["first", "while it drains"])
            resumed, _ = await watched_for(session, url, first, count=2)
    rate = max(LEAST_RATE, WATCHES / GRACE.total_seconds())
    moments = sorted(moment for _, moment in ended)
    assert took < GRACE.total_seconds() + 1
    assert moments[-1] - moments[0] > 0.6 * (WATCHES - 1) / rate, "evenly, not at once"
    assert resumed == ["while it drains", "afterwards"], "a client that comes back finds what it has missed, once"


@asynccontextmanager
async def stage_again(before: Stage) -> AsyncIterator[str]:
    """Another server over the same objects."""
    server = ApiServer(
        GROUPS,
        before.storage,
        authenticator=EveryoneIsAdmin(),
        authorizer=AllowEverything(),
        clock=SystemClock(),
        version={"gitVersion": "v0"},
        namespaces=every,
    )
    listening = await serve(server.application(), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{listening.port}"
    await listening.close(timedelta())


async def watched_for(session: aiohttp.ClientSession, url: str, after: int, count: int) -> tuple[list[str], int]:
    """The first `count` names that a watch from a revision tells."""
    names: list[str] = []
    async with session.get(f"{url}/api/v1/configmaps?watch=1&resourceVersion={after}") as response:
        async for line in response.content:
            names.append(json.loads(line)["object"]["metadata"]["name"])
            if len(names) == count:
                break
    return names, response.status


async def test_watches_that_cannot_end_evenly_in_time_end_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("machinery.pacing.LEAST_RATE", 1)
    monkeypatch.setattr("machinery.apiserver.watches.PACED_SHARE", 50)
    async with stage() as subject, aiohttp.ClientSession() as session:
        await subject.write("first")
        watching = [asyncio.create_task(watched(session, subject.url)) for _ in range(10)]
        async with asyncio.timeout(20):
            while len(subject.server.watches) < 10:  # noqa: ASYNC110 - they tell nobody
                await asyncio.sleep(0.01)
        await subject.server.watches.drain(timedelta(milliseconds=300))
        async with asyncio.timeout(5):
            assert [names for names, _ in await asyncio.gather(*watching)] == [["first"]] * 10


async def test_who_does_not_read_holds_up_nobody_beyond_the_grace() -> None:
    async with stage() as subject, aiohttp.ClientSession(read_bufsize=1024) as session:
        for number in range(200):
            await subject.write(f"large{number}", size=100_000)
        async with session.get(f"{subject.url}/api/v1/configmaps?watch=1") as response:
            assert response.status == 200
            started = asyncio.get_running_loop().time()
            await subject.server.watches.drain(timedelta(seconds=1))
            assert asyncio.get_running_loop().time() - started < 5


async def test_a_drain_ends_while_it_is_probed_all_the_time() -> None:
    async with stage() as subject, aiohttp.ClientSession() as session:
        stop = asyncio.Event()
        codes: list[int] = []

        async def probe() -> None:
            while not stop.is_set():
                async with session.get(f"{subject.url}/readyz") as response:
                    codes.append(response.status)
                await asyncio.sleep(0.02)

        probing = asyncio.create_task(probe())
        subject.draining.refuse()
        async with asyncio.timeout(20):
            for _ in range(10):
                await subject.draining.drained()
                await asyncio.sleep(0.02)
        stop.set()
        await probing
        assert set(codes) == {200}
        async with session.get(f"{subject.url}/version") as response:
            assert (response.status, response.headers["Connection"]) == (429, "close")
