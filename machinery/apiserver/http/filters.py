"""The way of a request through the server: a chain of filters, each with one concern, around the answer itself.

In Kubernetes' order, outermost first; the slots of `Filters` are filled by who composes the server, the others are its own:

    audit id -> counting -> errors as Status -> `paths` -> `gate` -> `in_flight` -> `audit` -> readable -> deadline
    -> authentication -> `impersonation` -> `limits` -> authorization -> the answer

What stands before `audit` leaves no record and costs no look-up. `audit` sees every outcome, refused credentials and expired
deadlines included: it reads who asked when the answer is there.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, Attributes, Decision
from machinery.apiserver.storage import Actor


@dataclass(slots=True)
class Incoming:
    """One request on its way. Filters note on it what those further in need to know."""

    request: web.Request
    audit_id: str
    attributes: Attributes
    received: float
    """By the clock's monotonic time, before any filter."""
    actor: Actor = ANONYMOUS
    """On whose behalf it is answered: who was authenticated, or whom that one was allowed to impersonate."""
    authenticated: Actor = ANONYMOUS
    """Who really asks."""
    decision: Decision | None = None
    """What authorization said; None while it has not been asked."""
    annotations: dict[str, str] = field(default_factory=dict)
    """What the audit record shall say beside the rest; never a secret."""
    on_headers: list[Callable[[web.StreamResponse], None]] = field(default_factory=list)
    """Called with the response just before its headers are sent: of a stream, long before its filters return."""

    @property
    def long_running(self) -> bool:
        """Whether it lasts until one side ends it: no deadline, and not counted among the requests in flight."""
        return self.attributes.verb == "watch"


INCOMING = web.RequestKey("incoming", Incoming)
"""Where the server leaves it on the request, for whoever answers."""

Inner = Callable[[Incoming], Awaitable[web.StreamResponse]]
Filter = Callable[[Incoming, Inner], Awaitable[web.StreamResponse]]
"""Answers by itself, raises an error of `machinery.errors`, or lets `inner` answer."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What a server's composer adds, by slot; within a slot the first is the outermost."""

    paths: tuple[Filter, ...] = ()
    gate: tuple[Filter, ...] = ()
    in_flight: tuple[Filter, ...] = ()
    audit: tuple[Filter, ...] = ()
    impersonation: tuple[Filter, ...] = ()
    limits: tuple[Filter, ...] = ()


def chained(filters: Sequence[Filter], answer: Inner) -> Inner:
    """`answer` behind `filters`, the first of them outermost."""
    for each in reversed(filters):
        answer = _around(each, answer)
    return answer


def _around(outer: Filter, inner: Inner) -> Inner:
    async def answer(incoming: Incoming) -> web.StreamResponse:
        return await outer(incoming, inner)

    return answer
