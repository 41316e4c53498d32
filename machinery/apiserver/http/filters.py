"""A request and the filters that it passes. Each filter has one task.

The order is that of Kubernetes, outermost first. Names in backticks are slots of `Filters`, which the composition root fills;
the other filters are fixed:

    audit id -> counting -> errors as Status -> `log_context` -> `gate` -> `in_flight` -> `audit` -> readable -> deadline
    -> authentication -> `impersonation` -> `limits` -> authorization -> the answer

Requests that end before `audit` leave no audit record. `audit` records every other outcome, including refused credentials and
expired deadlines, because it reads the actor after the response is complete.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, Attributes, Decision, peer_certificate
from machinery.apiserver.http.limits import WAIT_DIVISOR, Openings, Pool, Rates, RefusalQueue, Seat, origin
from machinery.apiserver.http.loopback import Loopback
from machinery.apiserver.http.options import request_timeout
from machinery.apiserver.storage import Actor
from machinery.errors import DeadlineError, MusterError, TooManyRequestsError, UnavailableError
from machinery.observability import logs, tracing
from machinery.observability.metrics import Distribution, Tally
from machinery.runtime.clock import Clock


@dataclass(slots=True)
class Incoming:
    """One request with the data that filters pass to inner filters."""

    request: web.Request
    audit_id: str
    attributes: Attributes
    received: float
    """Monotonic time at which the request arrived."""
    actor: Actor = ANONYMOUS
    """The user with whose rights the request runs: the authenticated user, or the user that it impersonates."""
    authenticated: Actor = ANONYMOUS
    decision: Decision | None = None
    annotations: dict[str, str] = field(default_factory=dict)
    """Additional fields of the audit record; never a secret."""
    shows_session: bool = False
    """Whether a filter has found a credential that is no certificate or Authorization header, such as a cookie."""
    on_headers: list[Callable[[web.StreamResponse], None]] = field(default_factory=list)
    """Called with the response just before its headers are sent. For a stream this is long before the filters return."""

    @property
    def long_running(self) -> bool:
        """Whether the request is a stream, which has no deadline and does not count as in flight."""
        return self.attributes.verb == "watch"


INCOMING = web.RequestKey("incoming", Incoming)

Inner = Callable[[Incoming], Awaitable[web.StreamResponse]]
Filter = Callable[[Incoming, Inner], Awaitable[web.StreamResponse]]
"""Returns its own response, raises an error of `machinery.errors`, or awaits the Inner, which runs the inner filters."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Additional filters of a server by slot. The first filter of a slot is the outermost."""

    log_context: tuple[Filter, ...] = ()
    gate: tuple[Filter, ...] = ()
    in_flight: tuple[Filter, ...] = ()
    audit: tuple[Filter, ...] = ()
    impersonation: tuple[Filter, ...] = ()
    limits: tuple[Filter, ...] = ()


def chained(filters: Sequence[Filter], answer: Inner) -> Inner:
    """Wrap `answer` in `filters`, of which the first is the outermost."""
    for each in reversed(filters):
        answer = _around(each, answer)
    return answer


def _around(outer: Filter, inner: Inner) -> Inner:
    async def answer(incoming: Incoming) -> web.StreamResponse:
        return await outer(incoming, inner)

    return answer


OTHER = "other"
CUT_OFF = "0"
"""Replaces the HTTP code in metrics if the client disconnected before the response."""
VERBS = frozenset(("create", "delete", "deletecollection", "get", "list", "patch", "post", "put", "update", "watch"))


class RequestCounts:
    """Counts the requests since the start of the server. `resources`: names of the served resources; others count as OTHER."""

    def __init__(self, clock: Clock, resources: Iterable[str]) -> None:
        self._clock = clock
        self._resources = frozenset(resources)
        self.answered: Tally = Tally()
        """Number of requests by verb, resource (empty: a path without resource) and code."""
        self.seconds: dict[str, Distribution] = {}
        """Time until the response was complete, by verb, without watches."""

    async def counted(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        code, asked = CUT_OFF, incoming.attributes
        try:
            response = await inner(incoming)
            code = str(response.status)
        finally:
            verb = asked.verb if asked.verb in VERBS else OTHER
            resource = asked.resource if not asked.resource or asked.resource in self._resources else OTHER
            self.answered[verb, resource, code] += 1
            if not incoming.long_running:
                duration = self._clock.monotonic() - incoming.received
                self.seconds.setdefault(verb, Distribution()).observe(duration)
        return response


AUDIT_ID = "muster.request_id"
STATUS = "http.response.status_code"


async def traced(incoming: Incoming, answer: Inner, known: AbstractSet[str]) -> web.StreamResponse:
    """Answer the request within a trace span. `known`: resource names that the name of a span may contain."""
    request, asked, span = incoming.request, incoming.attributes, tracing.NOTHING
    if asked.resource:
        part = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
        name = f"{asked.verb} {part if asked.resource in known else 'unknown'}"
        fields = {"http.request.method": request.method, "url.path": request.path, AUDIT_ID: incoming.audit_id}
        span = tracing.serving(name, request.headers.get, fields)

    def end(response: web.StreamResponse) -> None:
        span.note(STATUS, response.status)
        span.end(str(response.status) if response.status >= web.HTTPInternalServerError.status_code else "")

    with logs.of_request(incoming.audit_id), span:
        if incoming.long_running:
            incoming.on_headers.append(end)
        response = await answer(incoming)
        end(response)
        return response


LEVEL_HEADER = "X-Kubernetes-PF-PriorityLevel-UID"

NOT_OF_THE_CALLER = (UnavailableError, DeadlineError, TooManyRequestsError)
"""Errors that do not count as refusals, because the caller has not caused them: faults of the server, and limits."""

Placing = Callable[[Actor, Attributes], tuple[Pool, str]]
"""Returns the Pool in which a request takes a seat, and the identity that limits count. The identity "" has no rate limit."""


class Limiting:
    """The filter for the slot `limits`. `longest`: upper bound of a request's deadline; `watches` None: no limit of watches."""

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
            await pool.take(identity, self._wait_limit(incoming))
            seat = Seat(partial(pool.give, identity))
            if incoming.long_running:
                incoming.on_headers.append(lambda _response: seat.leave())
            try:
                return await inner(incoming)
            finally:
                seat.leave()

    def _wait_limit(self, incoming: Incoming) -> timedelta:
        allowed = self._longest if incoming.long_running else request_timeout(incoming.request.query, self._longest)
        spent = timedelta(seconds=self._clock.monotonic() - incoming.received)
        return max(allowed / WAIT_DIVISOR - spent, timedelta())


class RefusalLimit:
    """Bounds the rate of refused anonymous requests per address. The filter runs before authentication.

    Every error that the caller has caused counts as a refusal. Above the rate, the response is a 429, which waits in a
    queue. A request for a resource without a credential waits in this queue before its body is read. Requests with a valid
    credential, and requests that need no credential, are never refused or delayed here, because a fleet may have one address.
    """

    def __init__(self, rates: Rates, clock: Clock) -> None:
        self._rates = rates
        self._turns = RefusalQueue(clock)

    async def __call__(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        host, request = origin(incoming.request.remote or ""), incoming.request
        shows_nothing = "Authorization" not in request.headers and peer_certificate(request) is None
        shows_nothing = shows_nothing and not incoming.shows_session
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


EXEMPT = ("/readyz", "/livez", "/healthz", "/metrics")
RETRY_AFTER = 5


class Draining:
    """The two filters of a stopping server, `gate` and `counted`, and the steps of a stop: `refuse`, then `drained`.

    `gate` refuses new requests; `counted` counts admitted requests until they are done. Both pass requests for health and
    metrics, and the server's own loopback requests, because hooks may need the API until the end.
    """

    def __init__(self, loopback: Loopback | None = None) -> None:
        """`loopback`: identifies the server's own requests; None: the server makes none."""
        self._loopback = loopback
        self._refusing = False
        self._waiting = False
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @property
    def in_flight(self) -> int:
        """Number of requests in progress, without watches and without the requests that both filters always pass."""
        return self._count

    def refuse(self) -> None:
        """From now on, answer every new request with 429 and Retry-After, and close its connection."""
        self._refusing = True

    async def drained(self) -> None:
        """From now on, refuse requests with UnavailableError. Wait until all admitted requests are done."""
        self._waiting = True
        await self._none.wait()

    def _is_exempt(self, request: web.Request) -> bool:
        """Whether a request is answered even while the server stops."""
        return request.path.startswith(EXEMPT) or (self._loopback is not None and self._loopback.is_shown_by(request))

    async def gate(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        """The filter for the slot `gate`. After `refuse` it answers with 429."""
        if not self._refusing or self._is_exempt(incoming.request):
            return await inner(incoming)
        response = web.Response(text="The server is shutting down, please try again later.\n", status=429)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Retry-After"] = str(RETRY_AFTER)
        response.force_close()
        return response

    async def counted(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        """The filter for the slot `in_flight`. Raises UnavailableError after `drained` was called."""
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
