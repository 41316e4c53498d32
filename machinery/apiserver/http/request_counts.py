"""Request counts and durations. The filter is the outermost, where errors have become responses.

Labels are bounded by the known verbs and the served resources; others count as `other`.
"""

from collections.abc import Iterable

from aiohttp import web

from machinery.apiserver.http.filters import Incoming, Inner
from machinery.observability.metrics import Distribution, Tally
from machinery.runtime.clock import Clock

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
