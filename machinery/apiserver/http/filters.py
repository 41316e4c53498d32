"""The request on its way through the server's filters, each with one concern.

In Kubernetes' order, outermost first. The composition root fills the slots of `Filters`; the other filters are fixed:

    audit id -> counting -> errors as Status -> `paths` -> `gate` -> `in_flight` -> `audit` -> readable -> deadline
    -> authentication -> `impersonation` -> `limits` -> authorization -> the answer

Requests that end before `audit` leave no audit record and cost no look-up. `audit` sees every outcome, including refused
credentials and expired deadlines: it reads the actor when the response is complete.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, Attributes, Decision
from machinery.apiserver.storage import Actor
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
    """Monotonic time of the receipt, before any filter."""
    actor: Actor = ANONYMOUS
    """User for whom the request runs: the authenticated user, or the one that it impersonates."""
    authenticated: Actor = ANONYMOUS
    """The authenticated user."""
    decision: Decision | None = None
    """Result of authorization; None before it."""
    annotations: dict[str, str] = field(default_factory=dict)
    """Additional fields of the audit record; never a secret."""
    on_headers: list[Callable[[web.StreamResponse], None]] = field(default_factory=list)
    """Called with the response just before its headers are sent; for a stream this is long before its filters return."""

    @property
    def long_running(self) -> bool:
        """Whether it lasts until one side ends it: no deadline, not counted in flight."""
        return self.attributes.verb == "watch"


INCOMING = web.RequestKey("incoming", Incoming)
"""Key of the Incoming on the aiohttp request."""

Inner = Callable[[Incoming], Awaitable[web.StreamResponse]]
Filter = Callable[[Incoming, Inner], Awaitable[web.StreamResponse]]
"""Returns a response itself, raises an error of `machinery.errors`, or awaits `inner`."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Additional filters of a server by slot; within a slot the first is the outermost."""

    paths: tuple[Filter, ...] = ()
    gate: tuple[Filter, ...] = ()
    in_flight: tuple[Filter, ...] = ()
    audit: tuple[Filter, ...] = ()
    impersonation: tuple[Filter, ...] = ()
    limits: tuple[Filter, ...] = ()


def chained(filters: Sequence[Filter], answer: Inner) -> Inner:
    """`answer` wrapped in `filters`, the first outermost."""
    for each in reversed(filters):
        answer = _around(each, answer)
    return answer


def _around(outer: Filter, inner: Inner) -> Inner:
    async def answer(incoming: Incoming) -> web.StreamResponse:
        return await outer(incoming, inner)

    return answer


OTHER = "other"
CUT_OFF = "0"
"""Code of a request whose client disconnected before the response."""
VERBS = frozenset(("create", "delete", "deletecollection", "get", "list", "patch", "post", "put", "update", "watch"))


class RequestCounts:
    """Counts since the start. `resources`: names of the served resources."""

    def __init__(self, clock: Clock, resources: Iterable[str]) -> None:
        self._clock = clock
        self._resources = frozenset(resources)
        self.answered: Tally = Tally()
        """By verb, resource (empty: a path without resource) and code."""
        self.seconds: dict[str, Distribution] = {}
        """Time until the response was complete, by verb, without watches."""

    async def counted(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        code = CUT_OFF
        try:
            response = await inner(incoming)
            code = str(response.status)
        finally:
            self._note(incoming, code)
        return response

    def _note(self, incoming: Incoming, code: str) -> None:
        asked = incoming.attributes
        verb = asked.verb if asked.verb in VERBS else OTHER
        resource = asked.resource if not asked.resource or asked.resource in self._resources else OTHER
        self.answered[verb, resource, code] += 1
        if not incoming.long_running:
            if verb not in self.seconds:
                self.seconds[verb] = Distribution()
            self.seconds[verb].observe(self._clock.monotonic() - incoming.received)


AUDIT_ID = "muster.request_id"
STATUS = "http.response.status_code"


async def traced(incoming: Incoming, answer: Inner, known: AbstractSet[str]) -> web.StreamResponse:
    """Answer the request. `known`: resource names that may be part of a span's name, which must be bounded."""
    with logs.of_request(incoming.audit_id), _begun(incoming, known) as span:
        if incoming.long_running:
            incoming.on_headers.append(partial(_ended, span))
        response = await answer(incoming)
        _ended(span, response)
        return response


def _begun(incoming: Incoming, known: AbstractSet[str]) -> tracing.Traced:
    request, asked = incoming.request, incoming.attributes
    if not asked.resource:
        return tracing.NOTHING
    told = {"http.request.method": request.method, "url.path": request.path, AUDIT_ID: incoming.audit_id}
    return tracing.serving(_name(asked, known), request.headers.get, told)


def _name(asked: Attributes, known: AbstractSet[str]) -> str:
    if asked.resource not in known:
        return f"{asked.verb} unknown"
    return f"{asked.verb} {asked.resource}/{asked.subresource}" if asked.subresource else f"{asked.verb} {asked.resource}"


def _ended(span: tracing.Traced, response: web.StreamResponse) -> None:
    span.note(STATUS, response.status)
    span.end(str(response.status) if response.status >= web.HTTPInternalServerError.status_code else "")
