"""Ends the watches of a credential that is revoked, deleted or expired.

Presence is a filter after authentication. It aborts the connection, so that the client does not see a regular end of the watch.
The client's next request gets the reason.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from machinery.apiserver.authn.chain import IDENTITY, Identity
from machinery.apiserver.http.filters import Incoming, Inner
from machinery.errors import UnauthorizedError
from machinery.runtime.clock import Clock

MAX_ENDED = 10_000
ENDED = "this credential has ended"


class Presence:
    """Tracks open long-running requests by `Identity.mark`, and aborts the requests of a credential that ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, set[asyncio.Transport]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    async def __call__(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        identity = incoming.request.get(IDENTITY)
        transport = incoming.request.transport
        if identity is None or transport is None or not incoming.long_running:
            return await inner(incoming)
        with self._entered(identity, transport):
            return await inner(incoming)

    def end(self, mark: str) -> None:
        """Abort open requests with this `Identity.mark`. Refuse later long-running requests with it, even if authenticated."""
        self._ended[mark] = None
        self._ended.move_to_end(mark)
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        self._abort(mark)

    def end_under(self, prefix: str) -> None:
        """Abort open requests whose `Identity.mark` has this prefix."""
        for mark in [mark for mark in self._open if mark.startswith(prefix)]:
            self._abort(mark)

    def end_all(self) -> None:
        """Abort all open requests, because their identities can no longer be verified. New requests are authenticated again."""
        for mark in tuple(self._open):
            self._abort(mark)

    def _abort(self, mark: str) -> None:
        for transport in tuple(self._open.get(mark, ())):
            transport.abort()

    @contextmanager
    def _entered(self, identity: Identity, transport: asyncio.Transport) -> Iterator[None]:
        if identity.mark in self._ended:
            raise UnauthorizedError(ENDED)
        timer = None
        if identity.until is not None:
            left = (identity.until - self._clock.now()).total_seconds()
            timer = asyncio.get_running_loop().call_later(max(left, 0), transport.abort)
        self._open.setdefault(identity.mark, set()).add(transport)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._open[identity.mark].discard(transport)
            if not self._open[identity.mark]:
                del self._open[identity.mark]
