"""Since when every beat that an agent sent could be stored by some replica: only that time counts as an agent's silence.

Each replica marks, in the database, that it listens and can store. A mark is fresh for a while; as long as the fresh marks of
all replicas leave no gap, time counts, whoever leads and whoever comes and goes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

FRESH = timedelta(seconds=5)
"""A mark vouches for so long; without a newer one, beats may have been lost."""
JUMP = timedelta(seconds=2)
"""A clock that differs by more from what was to be expected has jumped."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A replica's word, in database time: it could store beats `at`, and somebody could without a gap from `since` on."""

    replica: str
    since: datetime
    at: datetime

    def is_fresh(self, now: datetime) -> bool:
        """Not in the past too far, and not in the future: then the database's clock went back."""
        return -JUMP <= now - self.at <= FRESH

    def is_ahead(self, now: datetime) -> bool:
        """The database's clock went back since it was made."""
        return self.at - now > JUMP


def heard_since(marks: Iterable[Checkpoint], now: datetime) -> datetime | None:
    """From when on beats could be stored without a gap until now; None: they cannot be, as far as anybody knows."""
    return min((mark.since for mark in marks if mark.is_fresh(now)), default=None)


def next_mark(replica: str, marks: Iterable[Checkpoint], now: datetime, *, began: bool) -> Checkpoint:
    """What `replica`, which can store beats now, has to mark. `began`: it has just started, and vouches for nothing before.

    A replica that was away takes over what the others heard meanwhile; where there is no other, time counts from now on.
    """
    known = tuple(marks)
    own = next((mark for mark in known if mark.replica == replica), None)
    if own is not None and not began and own.is_fresh(now):
        return Checkpoint(replica, own.since, max(own.at, now))
    others = heard_since((mark for mark in known if mark.replica != replica), now)
    return Checkpoint(replica, others or now, now)
