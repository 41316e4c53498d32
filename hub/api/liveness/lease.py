"""Grace and expiry of clusters' leases.

Sources: OCM's lease controller (grace = 5 x leaseDurationSeconds, expired when now >= renewal + grace); architecture D6.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

GRACE_FACTOR = 5
DEFAULT_LEASE_DURATION = timedelta(seconds=60)
LEASE_NAME = "managed-cluster-lease"


@dataclass(frozen=True, slots=True)
class Expiry:
    """Result of a check of one cluster's silence."""

    expired: bool
    """True: availability is Unknown, by this check or an earlier one."""
    look_again: timedelta | None
    """Delay until the next check. None: at the next beat or change. Zero: the grace has ended and Unknown is not set yet."""

    @property
    def is_due(self) -> bool:
        return self.look_again == timedelta()


def grace(lease_duration: timedelta) -> timedelta:
    return GRACE_FACTOR * lease_duration


def expires_at(last_beat: datetime | None, lease_duration: timedelta, *, window: timedelta, since: datetime) -> datetime:
    """The instant at which a cluster becomes silent: at least a full grace after `since`, when coverage began."""
    heard = since if last_beat is None else max(last_beat, since)
    return heard + grace(lease_duration) + window


def time_left(expiry: datetime, now: datetime) -> timedelta:
    """Time until the expiry; zero after it."""
    return max(expiry - now, timedelta())
