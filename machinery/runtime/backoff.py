"""Jittered exponential back-off."""

from datetime import timedelta
from random import Random

RANDOM = Random()  # noqa: S311 - spreads load, guards nothing
"""Shared, because seeding a generator costs a system call, and most back-offs are created for calls that succeed."""


class Backoff:
    """Delays that double from `first` to `cap`, each drawn from [delay * (1 - jitter), delay]. Call `reset` after a success."""

    def __init__(
        self,
        first: timedelta = timedelta(milliseconds=100),
        cap: timedelta = timedelta(seconds=30),
        *,
        jitter: float = 0.5,
        random: Random | None = None,
    ) -> None:
        self._first = first
        self._cap = cap
        self._jitter = jitter
        self._random = random or RANDOM
        self.failures = 0

    def next(self) -> timedelta:
        """Count a failure, and return the delay after it."""
        delay: timedelta = min(self._first * 2 ** min(self.failures, 32), self._cap)
        self.failures += 1
        return delay * (1 - self._jitter * self._random.random())

    def reset(self) -> None:
        self.failures = 0
