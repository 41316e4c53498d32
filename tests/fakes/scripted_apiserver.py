"""An API server that a test scripts, misbehaviour included; it keeps no state and checks nothing."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from machinery.client.rest import KubeClient

Send = Callable[[Mapping[str, Any] | bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Seen:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: str


class CutError(Exception):
    """Raised by a script to cut the connection in the middle of an answer."""


async def _nothing(_seen: Seen) -> web.Response:
    return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []})


async def _hold(_seen: Seen, _send: Send) -> None:
    await asyncio.Event().wait()


@dataclass
class ScriptedApiServer:
    """`answer` serves plain requests, `stream` watches; a stream ends when its script returns."""

    url: str = ""
    answer: Callable[[Seen], Awaitable[web.StreamResponse]] = _nothing
    stream: Callable[[Seen, Send], Awaitable[None]] = _hold
    refuse_watches: type[web.HTTPException] | None = None
    seen: list[Seen] = field(default_factory=list)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def watches(self) -> list[Seen]:
        return [seen for seen in self.seen if "watch" in seen.query]

    @property
    def lists(self) -> list[Seen]:
        return [seen for seen in self.seen if "watch" not in seen.query]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when the requests seen so far fulfil the condition."""
        async with self.arrived:
            await self.arrived.wait_for(condition)

    async def client(self) -> KubeClient:
        return await KubeClient.from_document(kubeconfig(self.url))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(request.method, request.path, dict(request.query), dict(request.headers), await request.text())
        async with self.arrived:
            self.seen.append(seen)
            self.arrived.notify_all()
        if "watch" not in seen.query:
            return await self.answer(seen)
        if self.refuse_watches:
            raise self.refuse_watches
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)

        async def send(event: Mapping[str, Any] | bytes) -> None:
            await response.write(event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n")

        try:
            await self.stream(seen, send)
        except CutError:
            assert request.transport
            request.transport.abort()
        return response


def kubeconfig(url: str) -> dict[str, Any]:
    return {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
        "clusters": [{"name": "it", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {"token": "opaque"}}],
    }


@asynccontextmanager
async def scripted_apiserver(port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedApiServer]:
    """A running server on a free port of the loopback interface, over plain HTTP or `tls`."""
    server, application = ScriptedApiServer(), web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, handle_signals=False, handler_cancellation=True, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
