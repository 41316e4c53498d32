"""Counters and durations of store transactions as callers see them, including the time in the queue."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from machinery.errors import UnavailableError
from machinery.observability.metrics import Distribution


@dataclass(slots=True)
class Work:
    """Transactions of one kind since the start. Updated on the event loop."""

    seconds: Distribution = field(default_factory=Distribution)
    failures: int = 0
    """Transactions that the database failed; refusals by a use case do not count."""
    under_way: int = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Context manager around one transaction."""
        began = time.monotonic()
        self.under_way += 1
        try:
            yield
        except UnavailableError:
            self.failures += 1
            raise
        finally:
            self.under_way -= 1
            self.seconds.observe(time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class StoreCounts:
    writing: Work = field(default_factory=Work)
    reading: Work = field(default_factory=Work)
