"""Coverage: since when replicas could store all beats. Only covered time counts as silence of agents.

Each replica writes marks into the database while it can store beats. A mark is fresh for a limited time. Time is covered while
the fresh marks of all replicas together leave no gap, whichever replicas lead, start or stop.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

FRESH = timedelta(seconds=5)
"""How long a mark is fresh. Later, beats may have been lost."""
JUMP = timedelta(seconds=2)
"""A clock that differs by more from its expected value has jumped."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A replica's mark, in database time: it could store beats `at`, and some replica could without a gap since `since`."""

    replica: str
    since: datetime
    at: datetime

    def is_fresh(self, now: datetime) -> bool:
        """Whether it is recent and not in the future. A mark in the future means that the database's clock moved back."""
        return -JUMP <= now - self.at <= FRESH

    def is_ahead(self, now: datetime) -> bool:
        """Whether the database's clock moved back since the mark was written."""
        return self.at - now > JUMP


def heard_since(marks: Iterable[Checkpoint], now: datetime) -> datetime | None:
    """Since when beats could be stored without a gap; None if no fresh mark exists."""
    return min((mark.since for mark in marks if mark.is_fresh(now)), default=None)


def next_mark(replica: str, marks: Iterable[Checkpoint], now: datetime, *, began: bool) -> Checkpoint:
    """The next mark of `replica`, which can store beats now. `began`: it has just started, so its old mark does not count.

    A replica without a fresh mark continues the coverage of the others; without others, coverage begins now.
    """
    known = tuple(marks)
    own = next((mark for mark in known if mark.replica == replica), None)
    if own is not None and not began and own.is_fresh(now):
        return Checkpoint(replica, own.since, max(own.at, now))
    others = heard_since((mark for mark in known if mark.replica != replica), now)
    return Checkpoint(replica, others or now, now)
