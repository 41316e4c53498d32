"""What a server counts of its requests: outermost of all filters, where an error has become a response.

Labels are bounded: by the verbs there are, and by the resources that are served. What somebody makes up counts as `other`.
"""

from collections.abc import Iterable

from aiohttp import web

from machinery.apiserver.http.filters import Incoming, Inner
from machinery.observability.metrics import Distribution, Tally
from machinery.runtime.clock import Clock

OTHER = "other"
CUT_OFF = "0"
"""The code of a request whose client has gone before it was answered."""
VERBS = frozenset(("create", "delete", "deletecollection", "get", "list", "patch", "post", "put", "update", "watch"))


class RequestCounts:
    """Since the start. `resources`: the names of what is served."""

    def __init__(self, clock: Clock, resources: Iterable[str]) -> None:
        self._clock = clock
        self._resources = frozenset(resources)
        self.answered: Tally = Tally()
        """By verb, resource (empty: none was asked for) and code."""
        self.seconds: dict[str, Distribution] = {}
        """Until the answer was complete, by verb; watches are not among them."""

    async def counted(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        """The filter."""
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
