"""The gate and the count of a stop, the mark of an incomplete server, and that the exceptions are the same for both filters."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from machinery.apiserver.draining import Draining
from machinery.apiserver.filters import Filter, Incoming
from machinery.apiserver.loopback import USER_AGENT, Loopback
from machinery.apiserver.notyet import not_yet
from machinery.apiserver.paths import attributes
from machinery.apiserver.site import no_such_page
from machinery.clock import ManualClock
from machinery.errors import NotFoundError, Subject, UnavailableError

LOOPBACK = Loopback.fresh(ManualClock().now())
EXEMPT: list[tuple[str, dict[str, str]]] = [
    ("/readyz", {}),
    ("/readyz/ping", {}),
    ("/livez", {}),
    ("/healthz", {}),
    ("/metrics", {}),
    ("/apis", {"Authorization": f"Bearer {LOOPBACK.token}"}),
]
COUNTED: list[tuple[str, dict[str, str]]] = [
    ("/apis", {}),
    ("/version", {}),
    ("/api/v1/namespaces/readyz/secrets", {}),
    ("/apis", {"User-Agent": f"{USER_AGENT}1.2.3"}),
    ("/apis", {"Authorization": "Bearer another"}),
]


def incoming(path: str, headers: dict[str, str] | None = None) -> Incoming:
    request = make_mocked_request("GET", path, headers=headers or {})
    return Incoming(request, "audit", attributes("GET", request.path, request.query), 0.0)


async def fine(_incoming: Incoming) -> web.StreamResponse:
    return web.Response(text="fine")


async def through(chosen: Filter, request: Incoming, inner: Any = fine) -> web.StreamResponse:
    return await chosen(request, inner)


@pytest.mark.parametrize(("path", "headers"), EXEMPT)
async def test_what_is_exempt_is_let_in_and_not_waited_for(path: str, headers: dict[str, str]) -> None:
    draining = Draining(LOOPBACK)
    draining.refuse()
    release = asyncio.Event()

    async def slow(_incoming: Incoming) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    assert (await through(draining.gate, incoming(path, headers))).status == 200
    probing = asyncio.create_task(through(draining.counted, incoming(path, headers), slow))
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        await draining.drained()
    assert (await through(draining.counted, incoming(path, headers))).status == 200, "also once the wait has begun"
    release.set()
    await probing


@pytest.mark.parametrize(("path", "headers"), COUNTED)
async def test_everything_else_is_refused_at_the_gate_and_counted_behind_it(path: str, headers: dict[str, str]) -> None:
    draining = Draining(LOOPBACK)
    assert (await through(draining.gate, incoming(path, headers))).status == 200
    release = asyncio.Event()

    async def slow(_incoming: Incoming) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    working = asyncio.create_task(through(draining.counted, incoming(path, headers), slow))
    await asyncio.sleep(0)
    assert draining.in_flight == 1
    draining.refuse()
    refused = await through(draining.gate, incoming(path, headers))
    assert isinstance(refused, web.Response)
    assert (refused.status, refused.text) == (429, "The server is shutting down, please try again later.\n")
    assert refused.headers["Retry-After"] == "5"
    assert refused.keep_alive is False
    waiting = asyncio.create_task(draining.drained())
    await asyncio.sleep(0)
    assert not waiting.done()
    with pytest.raises(UnavailableError) as late:
        await through(draining.counted, incoming(path, headers))
    assert late.value.retry_after is not None
    release.set()
    await working
    await waiting


async def test_a_watch_is_not_waited_for() -> None:
    draining = Draining(LOOPBACK)

    async def endless(_incoming: Incoming) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    watch = incoming("/apis/example.com/v1/things?watch=1")
    assert watch.long_running
    watching = asyncio.create_task(through(draining.counted, watch, endless))
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        await draining.drained()
    watching.cancel()


async def test_one_that_fails_is_not_counted_for_ever() -> None:
    draining = Draining(LOOPBACK)

    async def broken(_incoming: Incoming) -> web.StreamResponse:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        await through(draining.counted, incoming("/apis"), broken)
    assert draining.in_flight == 0
    await draining.drained()


class Paths:
    def __init__(self) -> None:
        self.complete = False


async def nothing(_incoming: Incoming) -> web.StreamResponse:
    return no_such_page()


async def no_resource(_incoming: Incoming) -> web.StreamResponse:
    raise NotFoundError("the server could not find the requested resource")


@pytest.mark.parametrize("missing", [nothing, no_resource])
async def test_a_missing_path_is_not_gone_before_all_are_installed_and_gone_afterwards(missing: Any) -> None:
    paths = Paths()
    mark = not_yet(lambda: paths.complete)
    with pytest.raises(UnavailableError) as early:
        await through(mark, incoming("/apis/late.example.com/v1/things"), missing)
    assert early.value.retry_after is not None
    assert early.value.retry_after.total_seconds() == 5
    paths.complete = True
    if missing is nothing:
        assert (await through(mark, incoming("/apis/late.example.com/v1/things"), missing)).status == 404
    else:
        with pytest.raises(NotFoundError):
            await through(mark, incoming("/apis/late.example.com/v1/things"), missing)


async def test_what_counts_is_when_the_request_arrived() -> None:
    paths = Paths()

    async def slowly(request: Incoming) -> web.StreamResponse:
        paths.complete = True
        return await nothing(request)

    with pytest.raises(UnavailableError):
        await through(not_yet(lambda: paths.complete), incoming("/nowhere"), slowly)


async def test_an_object_that_is_not_there_is_not_there() -> None:
    async def no_object(_incoming: Incoming) -> web.StreamResponse:
        raise NotFoundError('things "a" not found', subject=Subject(name="a", kind="things"))

    with pytest.raises(NotFoundError):
        await through(not_yet(lambda: False), incoming("/apis/example.com/v1/things/a"), no_object)
    assert (await through(not_yet(lambda: False), incoming("/version"))).status == 200
