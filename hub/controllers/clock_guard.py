"""Not a controller: whether those that let go of what is old may believe the database's clock.

A clock that is a year ahead for two minutes makes everything old, and what is gone then does not come back when the clock is
put right. So nothing goes by its age before the database's clock has gone beside a clock of ours, which never jumps, for a
while. Each look at it counts, and a look is part of every transaction that removes something.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Concatenate, ParamSpec, TypeVar

import structlog

from hub.ports import Store, Transaction
from machinery.runtime.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")

SETTLED = timedelta(minutes=10)
"""So long the database's clock has to go as ours does."""
APART = timedelta(minutes=1)
"""A transaction waits for its turn for some seconds; whoever differs by more has jumped."""

log = structlog.get_logger(__name__)


class Steadiness:
    """Of the database's clock, as one controller sees it. `clock`: ours."""

    def __init__(self, clock: Clock, settled: timedelta = SETTLED) -> None:
        self._clock = clock
        self._settled = settled
        self._began: datetime | None = None
        self._since = 0.0

    @property
    def wait(self) -> timedelta:
        """How long it takes until the database's clock is believed, if it goes on as it did."""
        steady = timedelta(seconds=self._clock.monotonic() - self._since) if self._began else timedelta()
        return max(self._settled - steady, timedelta())

    async def run(
        self, store: Store, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """What the use case returns; None: it was not run, because the clock is not believed."""
        return await store.run(self._if_steady, lambda tx: use_case(tx, *args, **kwargs))

    async def read(
        self, store: Store, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """The same, for a question."""
        return await store.read(self._if_steady, lambda tx: query(tx, *args, **kwargs))

    def _if_steady(self, tx: Transaction, work: Callable[[Transaction], T]) -> T | None:
        return work(tx) if self.believes(tx.now) else None

    def believes(self, now: datetime) -> bool:
        """Whether the database's clock is believed; `now`: what it says. Each look counts.

        On a thread of the store; a controller waits for it before it asks again.
        """
        self._look(now)
        return not self.wait

    def _look(self, now: datetime) -> None:
        ours = self._clock.monotonic()
        began = now - timedelta(seconds=ours)
        if self._began is not None and abs(began - self._began) > APART:
            log.warning("nothing goes by its age for a while: the database's clock has jumped", minutes=self._minutes(began))
            self._since = ours
        elif self._began is None:
            self._since = ours
        self._began = began

    def _minutes(self, began: datetime) -> float:
        return round((began - (self._began or began)) / timedelta(minutes=1), 1)
