"""Whether this process leads at this moment, and in which term: what a writer asks before it sends anything.

Set and cleared by the elector alone, synchronously, on the event loop. It also lapses by itself: a process that was stopped and
continued finds it lapsed before its elector has run again.
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
    """By the monotonic clock."""


class Leadership:
    """The flag of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: _Held | None = None
        self.deposed = asyncio.Event()
        """Set when a writer found that a newer term began."""
        self.refused = 0
        """Writes that were not sent."""
        self.fenced = 0
        """Writes that were sent and found a newer term in their transaction."""

    @property
    def term(self) -> int | None:
        """The term in which this process leads now; None: it does not."""
        held = self._held
        return held.term if held is not None and self._clock.monotonic() < held.until else None

    def require(self, term: int) -> None:
        """Raises NotLeaderError unless this process leads now, in that term."""
        if self.term != term:
            self.refused += 1
            raise NotLeaderError(NOT_LEADING)

    def was_fenced(self, term: int) -> None:
        """A writer of that term was told by its transaction that the term is over."""
        self.fenced += 1
        if self._held is not None and self._held.term == term:
            self._held = None
            self.deposed.set()

    def hold(self, term: int, until: float) -> None:
        """Leads in `term` until that instant of the monotonic clock, unless it is told again."""
        if self._held is None or self._held.term != term:
            self.deposed.clear()
        self._held = _Held(term, until)

    def extend(self, term: int, until: float) -> None:
        """As `hold`, for a term that still stands; one that fell meanwhile stays fallen."""
        if self._held is not None and self._held.term == term:
            self._held = _Held(term, until)

    def drop(self) -> None:
        """Leads no more."""
        self._held = None
