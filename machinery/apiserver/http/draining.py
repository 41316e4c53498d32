"""While a server stops: requests are turned away at the gate, and those that were let in are counted until they are done.

Health and metrics are always answered, and so is the server itself, whose hooks may need its API to the end. One predicate says
so for both filters: a request that is let in and never counted, or counted and never let out, would make a drain wait for ever.
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
    """The two filters, `gate` and `counted`, and what a stop does with them: `refuse`, then `drained`."""

    def __init__(self, loopback: Loopback | None = None) -> None:
        """`loopback`: by what the server's own requests are known; None: it makes none."""
        self._loopback = loopback
        self._refusing = False
        self._waiting = False
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @property
    def in_flight(self) -> int:
        """Requests that are being answered; watches and exempt ones are not among them."""
        return self._count

    def refuse(self) -> None:
        """Every new request is told to try again, on a connection of its own."""
        self._refusing = True

    async def drained(self) -> None:
        """Returns when all that were let in are done. From the call on none is added: a late one is told that it is late."""
        self._waiting = True
        await self._none.wait()

    def _is_exempt(self, request: web.Request) -> bool:
        """Whether a request is answered also while the server stops."""
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
