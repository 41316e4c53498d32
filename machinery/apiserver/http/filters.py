"""The chain of filters around the answer to a request, each with one concern.

In Kubernetes' order, outermost first. The composition root fills the slots of `Filters`; the other filters are fixed:

    audit id -> counting -> errors as Status -> `paths` -> `gate` -> `in_flight` -> `audit` -> readable -> deadline
    -> authentication -> `impersonation` -> `limits` -> authorization -> the answer

Requests that end before `audit` leave no audit record and cost no look-up. `audit` sees every outcome, including refused
credentials and expired deadlines: it reads the actor when the response is complete.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from machinery.apiserver.access import ANONYMOUS, Attributes, Decision
from machinery.apiserver.storage import Actor


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
