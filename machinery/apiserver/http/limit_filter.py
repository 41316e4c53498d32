"""The filter that applies rate limits per identity and seats per priority level.

A request waits for a seat for at most a quarter of its deadline, counted from its receipt. A watch holds a seat only until its
response begins. Anonymous callers count by host, so that one host cannot take the capacity of others.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, Attributes, peer_certificate
from machinery.apiserver.http.filters import Incoming, Inner
from machinery.apiserver.http.limits import PATIENCE, Openings, Pool, Rates, RefusalQueue, Slot, origin
from machinery.apiserver.http.options import request_timeout
from machinery.apiserver.storage import Actor
from machinery.errors import DeadlineError, MusterError, TooManyRequestsError, UnavailableError
from machinery.runtime.clock import Clock

LEVEL_HEADER = "X-Kubernetes-PF-PriorityLevel-UID"

NOT_OF_THE_CALLER = (UnavailableError, DeadlineError, TooManyRequestsError)
"""Errors that do not count against the caller: faults of the server, and limits themselves."""

Placing = Callable[[Actor, Attributes], tuple[Pool, str]]
"""The pool of a request, and its identity for limits; "" has no rate limit."""


class Limiting:
    """The filter for the slot `limits`. `longest`: upper bound of a request's deadline; `watches`: None for no limit."""

    def __init__(self, place: Placing, rates: Rates, clock: Clock, longest: timedelta, watches: Openings | None = None) -> None:
        self._place = place
        self._rates = rates
        self._clock = clock
        self._longest = longest
        self._watches = watches or Openings(0, 0)

    async def __call__(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        pool, identity = self._place(incoming.actor, incoming.attributes)
        if identity and incoming.authenticated.user == ANONYMOUS.user:
            identity = f"{identity} {origin(incoming.request.remote or '')}"
        incoming.on_headers.append(lambda response: response.headers.update({LEVEL_HEADER: pool.uid}))
        if identity:
            self._rates.check(identity)
        with self._watches.one(identity if incoming.long_running else ""):
            await pool.take(identity, self._patience(incoming))
            seat = Slot(partial(pool.give, identity))
            if incoming.long_running:
                incoming.on_headers.append(lambda _response: seat.leave())
            try:
                return await inner(incoming)
            finally:
                seat.leave()

    def _patience(self, incoming: Incoming) -> timedelta:
        allowed = self._longest if incoming.long_running else request_timeout(incoming.request.query, self._longest)
        spent = timedelta(seconds=self._clock.monotonic() - incoming.received)
        return max(allowed / PATIENCE - spent, timedelta())


class RefusalLimit:
    """Bounds the rate of refused anonymous requests per address. The filter runs before authentication.

    Every error caused by the caller counts. Above the rate a refusal becomes a 429 and is queued with the others; a request
    without a credential waits in that queue before any of it is read. Requests with a valid credential and requests that anyone
    may make are never refused or delayed here, since a whole fleet may have one address.
    """

    def __init__(self, rates: Rates, clock: Clock) -> None:
        self._rates = rates
        self._turns = RefusalQueue(clock)

    async def __call__(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        host, request = origin(incoming.request.remote or ""), incoming.request
        shows_nothing = "Authorization" not in request.headers and peer_certificate(request) is None
        if incoming.attributes.resource and shows_nothing and not self._rates.has_room(host):
            async with self._turns.one(host):
                return await self._counted(incoming, inner, host)
        try:
            return await self._counted(incoming, inner, host)
        except TooManyRequestsError:
            if incoming.authenticated.user == ANONYMOUS.user:
                async with self._turns.one(host):
                    pass
            raise

    async def _counted(self, incoming: Incoming, inner: Inner, host: str) -> web.StreamResponse:
        try:
            return await inner(incoming)
        except NOT_OF_THE_CALLER:
            raise
        except MusterError:
            if incoming.authenticated.user == ANONYMOUS.user:
                self._rates.check(host)
            raise
