"""The clock guard: decides whether a controller that acts by age may trust the database's clock.

If the clock is a year ahead for two minutes, all data seems old, and a deletion cannot be undone. So nothing is deleted by age
until the database's clock has agreed with this process's monotonic clock for a while. Every transaction that deletes by age
compares the two clocks.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Concatenate, ParamSpec, TypeVar

import structlog

from hub.ports import Transaction
from machinery.runtime.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")

SETTLED = timedelta(minutes=10)
"""Time for which both clocks must agree."""
APART = timedelta(minutes=1)
"""Tolerance: a transaction may wait some seconds for its turn; a larger difference is a jump."""

log = structlog.get_logger(__name__)


class ClockGuard:
    """Compares the database's clock with `clock`, this process's clock, for one controller. `settled`: see SETTLED."""

    def __init__(self, clock: Clock, settled: timedelta = SETTLED) -> None:
        self._clock = clock
        self._settled = settled
        self._began: datetime | None = None
        self._since = 0.0

    @property
    def wait(self) -> timedelta:
        """Time until the database's clock is trusted, if it does not jump before; zero if the clock is trusted now."""
        steady = timedelta(seconds=self._clock.monotonic() - self._since) if self._began else timedelta()
        return max(self._settled - steady, timedelta())

    def guarded(self, work: Callable[Concatenate[Transaction, P], T]) -> Callable[Concatenate[Transaction, P], T | None]:
        """Wrap a use case or query. While the clock is not trusted, the wrapped function does nothing and returns None."""

        def run(tx: Transaction, /, *args: P.args, **kwargs: P.kwargs) -> T | None:
            return work(tx, *args, **kwargs) if self.trusts_clock(tx.now) else None

        return run

    def trusts_clock(self, now: datetime) -> bool:
        """Whether the database's clock, which shows `now`, is trusted. Each call compares the clocks.

        Runs on the store's writer thread, so that calls of several workers do not overlap.
        """
        ours = self._clock.monotonic()
        began = now - timedelta(seconds=ours)
        if self._began is None:
            self._since = ours
        elif abs(began - self._began) > APART:
            minutes = round((began - self._began) / timedelta(minutes=1), 1)
            log.warning("deletion by age is paused: the database's clock has jumped", minutes=minutes)
            self._since = ours
        self._began = began
        return not self.wait
