"""The HTTPS door's drain waits for what its filters have counted, and for its watches."""

import asyncio
import ssl
from datetime import timedelta

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from hub.apiserver.listener import HttpsDoor
from machinery.apiserver.draining import Draining
from machinery.apiserver.filters import Incoming
from machinery.apiserver.paths import attributes


class Nothing:
    """Something served, whose watches end when they are told to."""

    def __init__(self) -> None:
        self.ended: list[timedelta] = []
        self.end = asyncio.Event()

    def application(self) -> web.Application:
        raise NotImplementedError

    async def end_watches(self, grace: timedelta) -> None:
        self.ended.append(grace)
        await self.end.wait()


async def test_a_drain_waits_for_requests_and_watches() -> None:
    served, draining, release = Nothing(), Draining(), asyncio.Event()
    door = HttpsDoor(served, draining, "127.0.0.1", 0, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    async def slow(_incoming: Incoming) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    request = make_mocked_request("GET", "/apis")
    incoming = Incoming(request, "audit", attributes("GET", "/apis", request.query), 0.0)
    answering = asyncio.create_task(draining.counted(incoming, slow))
    await asyncio.sleep(0)
    drain = asyncio.create_task(door.drain(timedelta(seconds=7)))
    served.end.set()
    await asyncio.wait({drain}, timeout=0.05)
    assert not drain.done(), "a request is in flight"
    served.end.clear()
    release.set()
    await answering
    await drain
    assert served.ended == [timedelta(seconds=7)]
    served.end.clear()
    again = asyncio.create_task(door.drain(timedelta(seconds=7)))
    await asyncio.wait({again}, timeout=0.05)
    assert not again.done(), "a watch is open"
    served.end.set()
    await again
