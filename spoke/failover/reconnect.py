"""How long a hub that was lost is tried again before the agent goes elsewhere."""

from collections.abc import Callable
from random import Random

from machinery.runtime.clock import Clock
from spoke.options import Hubs

SHORTEST_TRY = 0.01
"""Seconds: what is left of the patience and is not worth another try."""


class ReconnectBudget:
    """The patience with one hub: drawn anew at the first loss after sessions that did their work.

    `spent` says whether it was spent already, on the hub before: of several dead hubs only the first is waited for.
    """

    def __init__(self, options: Hubs, spent: Callable[[], bool], clock: Clock, random: Random) -> None:
        self._options = options
        self._spent = spent
        self._clock = clock
        self._random = random
        self._opened_at: float | None = None
        self._lost_at: float | None = None
        self._patience = 0.0

    @property
    def left(self) -> float | None:
        """Seconds; 0: it is over; None: nothing is lost."""
        if self._lost_at is None:
            return None
        left = self._lost_at + self._patience - self._clock.monotonic()
        return left if left > SHORTEST_TRY else 0.0

    @property
    def is_over(self) -> bool:
        return self.left == 0.0

    def opened(self) -> None:
        """A session is open."""
        self._opened_at = self._clock.monotonic()

    def moved(self) -> None:
        """The session is with another hub, which has not failed."""
        self._lost_at = None

    def lost(self) -> bool:
        """Whether the session that is lost, or was never opened, lasted long enough to make good what failed before."""
        now, opened = self._clock.monotonic(), self._opened_at
        steady = opened is not None and now - opened >= self._options.steady.total_seconds()
        if self._lost_at is None or steady:
            self._lost_at = now
            drawn = (1 + 2 * self._random.random()) / 3
            self._patience = 0.0 if opened is None and self._spent() else self._options.patience.total_seconds() * drawn
        self._opened_at = None
        return steady
