"""Whether this process leads now, and in which term. Every leader write checks it first.

Only the elector sets and clears it, synchronously on the event loop. It also expires by itself, so a process that was suspended
finds it expired before its elector has run again.
"""

import asyncio
from dataclasses import dataclass

from machinery.errors import NotLeaderError
from machinery.runtime.clock import Clock

NOT_LEADING = "this replica does not lead: nothing was sent"


@dataclass(frozen=True, slots=True)
class _Held:
    term: int
    until: float
    """Monotonic time."""


class Leadership:
    """The leadership flag of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: _Held | None = None
        self.deposed = asyncio.Event()
        """Set when a writer found a newer term."""
        self.refused = 0
        """Number of writes that were not sent."""
        self.fenced = 0
        """Number of writes that were sent and found a newer term in their transaction."""

    @property
    def term(self) -> int | None:
        """The term in which this process leads now; None: it does not lead."""
        held = self._held
        return held.term if held is not None and self._clock.monotonic() < held.until else None

    def require(self, term: int) -> None:
        """Raises NotLeaderError unless this process leads now, in `term`."""
        if self.term != term:
            self.refused += 1
            raise NotLeaderError(NOT_LEADING)

    def was_fenced(self, term: int) -> None:
        """Record that a transaction of a write in `term` found a newer term."""
        self.fenced += 1
        if self._held is not None and self._held.term == term:
            self._held = None
            self.deposed.set()

    def hold(self, term: int, until: float) -> None:
        """Set the flag for `term` until `until` (monotonic)."""
        if self._held is None or self._held.term != term:
            self.deposed.clear()
        self._held = _Held(term, until)

    def extend(self, term: int, until: float) -> None:
        """As `hold`, but only if the flag is set for `term`; an expired or cleared flag stays cleared."""
        if self._held is not None and self._held.term == term:
            self._held = _Held(term, until)

    def drop(self) -> None:
        """Clear the flag."""
        self._held = None
