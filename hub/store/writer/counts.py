"""What the store counts of its transactions, as its callers know them: with the time that they waited for their turn."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from machinery.errors import UnavailableError
from machinery.observability.metrics import Distribution


@dataclass(slots=True)
class Work:
    """Transactions of one kind since the start. Counted on the event loop."""

    seconds: Distribution = field(default_factory=Distribution)
    failures: int = 0
    """Those that the database would not have; what a use case refused is none of them."""
    under_way: int = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A block around one of them."""
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
