"""What a credential has open ends with it: watches of who was revoked, deleted, or whose time is over.

A filter behind authentication. Ending aborts the connection: a watch has no last word that a client would take for the end of
its right, and the next request of that credential is refused in words.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from machinery.apiserver.authn.identity import IDENTITY, Identity
from machinery.apiserver.http.filters import Incoming, Inner
from machinery.errors import UnauthorizedError
from machinery.runtime.clock import Clock

MAX_ENDED = 10_000
ENDED = "this credential has ended"


class Presence:
    """The long-running requests that are open, by the mark of their credential."""

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
        """Ends what is open under this mark, and what was let in with it but has not begun yet. It does not come back."""
        self._ended[mark] = None
        self._ended.move_to_end(mark)
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        self._abort(mark)

    def end_under(self, prefix: str) -> None:
        """Ends what is open now under marks that begin so."""
        for mark in [mark for mark in self._open if mark.startswith(prefix)]:
            self._abort(mark)

    def end_all(self) -> None:
        """Ends everything: nobody can be known any more. Who is known again may come back."""
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
