"""The trial: how long a lost hub is retried before the agent changes hub."""

from collections.abc import Callable
from random import Random

from machinery.runtime.clock import Clock
from spoke.options import Hubs

SHORTEST_TRY = 0.01
"""Seconds; a shorter rest of the patience is not worth another attempt."""


class ReconnectBudget:
    """The patience with one hub, drawn at the first loss after a session that lasted.

    `spent` returns whether it was already spent on the previous hub: of several unreachable hubs, only the first is waited for.
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
        """Seconds left; 0: it is over; None: nothing is lost."""
        if self._lost_at is None:
            return None
        left = self._lost_at + self._patience - self._clock.monotonic()
        return left if left > SHORTEST_TRY else 0.0

    @property
    def is_over(self) -> bool:
        return self.left == 0.0

    def opened(self) -> None:
        """Record that a session is open."""
        self._opened_at = self._clock.monotonic()

    def moved(self) -> None:
        """Record that the session is with another hub, which has not failed."""
        self._lost_at = None

    def lost(self) -> bool:
        """Record a loss; return whether the session lasted long enough to reset earlier failures."""
        now, opened = self._clock.monotonic(), self._opened_at
        steady = opened is not None and now - opened >= self._options.steady.total_seconds()
        if self._lost_at is None or steady:
            self._lost_at = now
            drawn = (1 + 2 * self._random.random()) / 3
            self._patience = 0.0 if opened is None and self._spent() else self._options.patience.total_seconds() * drawn
        self._opened_at = None
        return steady
