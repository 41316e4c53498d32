"""When silence becomes news: grace, expiry and the verdict at the end of it.

Sources: OCM's lease controller (grace = 5 x leaseDurationSeconds, expired when now >= renewal + grace, exactly); D6.
"""

from dataclasses import dataclass
from datetime import timedelta

GRACE_FACTOR = 5
DEFAULT_LEASE_DURATION = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Expiry:
    """What came of a look at one cluster's silence."""

    expired: bool
    """True: availability is Unknown now, by this look or one before."""
    look_again: timedelta | None
    """After this time; None: at the next beat or change."""
