"""When silence becomes news: grace, expiry and the verdict at the end of it.

Sources: OCM's lease controller (grace = 5 x leaseDurationSeconds, expired when now >= renewal + grace, exactly); D6.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

GRACE_FACTOR = 5
DEFAULT_LEASE_DURATION = timedelta(seconds=60)
LEASE_NAME = "managed-cluster-lease"


@dataclass(frozen=True, slots=True)
class Expiry:
    """What came of a look at one cluster's silence."""

    expired: bool
    """True: availability is Unknown now, by this look or one before."""
    look_again: timedelta | None
    """After this time; None: at the next beat or change. Zero: now, because the silence is over the grace and not told yet."""

    @property
    def is_due(self) -> bool:
        return self.look_again == timedelta()


def grace(lease_duration: timedelta) -> timedelta:
    return GRACE_FACTOR * lease_duration


def expires_at(last_beat: datetime | None, lease_duration: timedelta, *, window: timedelta, since: datetime) -> datetime:
    """The instant from which a cluster is silent: never before a full grace after `since`, when beats could first be stored."""
    heard = since if last_beat is None else max(last_beat, since)
    return heard + grace(lease_duration) + window


def time_left(expiry: datetime, now: datetime) -> timedelta:
    """Zero at the expiry and after it."""
    return max(expiry - now, timedelta())
