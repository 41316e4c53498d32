"""Filters of a stopping server.

A stopping server refuses new requests at the gate and counts admitted ones until they are done. Health, metrics and the
server's own loopback requests are always answered, since hooks may need the API to the end. Both filters of a stop use one
predicate for this: a request that only one of them exempted would make a drain wait for ever.
"""

import asyncio
from datetime import timedelta

from aiohttp import web

from machinery.apiserver.http.filters import Incoming, Inner
from machinery.apiserver.http.loopback import Loopback
from machinery.errors import UnavailableError

EXEMPT = ("/readyz", "/livez", "/healthz", "/metrics")
RETRY_AFTER = 5


class Draining:
    """The two filters, `gate` and `counted`, and the steps of a stop: `refuse`, then `drained`."""

    def __init__(self, loopback: Loopback | None = None) -> None:
        """`loopback`: identifies the server's own requests; None: it makes none."""
        self._loopback = loopback
        self._refusing = False
        self._waiting = False
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @property
    def in_flight(self) -> int:
        """Requests in progress, without watches and exempt ones."""
        return self._count

    def refuse(self) -> None:
        """Answer every new request with 429 and Retry-After, and close its connection."""
        self._refusing = True

    async def drained(self) -> None:
        """Wait until all admitted requests are done. Later requests are refused with UnavailableError."""
        self._waiting = True
        await self._none.wait()

    def _is_exempt(self, request: web.Request) -> bool:
        """Whether a request is answered even while the server stops."""
        return request.path.startswith(EXEMPT) or (self._loopback is not None and self._loopback.is_shown_by(request))

    async def gate(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        """The filter for the slot `gate`."""
        if not self._refusing or self._is_exempt(incoming.request):
            return await inner(incoming)
        response = web.Response(text="The server is shutting down, please try again later.\n", status=429)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Retry-After"] = str(RETRY_AFTER)
        response.force_close()
        return response

    async def counted(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        """The filter for the slot `in_flight`."""
        if incoming.long_running or self._is_exempt(incoming.request):
            return await inner(incoming)
        if self._waiting:
            raise UnavailableError("the server is shutting down", retry_after=timedelta(seconds=1))
        self._count += 1
        self._none.clear()
        try:
            return await inner(incoming)
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()
