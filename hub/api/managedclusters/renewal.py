"""An operator's order to renew certificates: an annotation of the ManagedCluster with an ISO 8601 interval.

All certificates issued before the start of the interval shall be renewed within it. The order never changes: an agent that has
renewed has fulfilled it, and an agent that was offline for the whole interval renews when it returns.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hub.api.meta import document as doc
from hub.api.meta.change import Document
from machinery.errors import InvalidError
from machinery.meta.timestamps import format_micro_time, parse_time

RENEW = "hub.open-cluster-management.io/renew"
LONGEST = timedelta(days=7)
LATE = timedelta(seconds=30)
"""Time for an agent that returns after the interval; it prevents a returning fleet from renewing all at once."""


@dataclass(frozen=True, slots=True)
class RenewalOrder:
    """`before`: the database's time of the order."""

    before: datetime
    within: timedelta

    def asks(self, issued_at: datetime) -> bool:
        """Whether a certificate issued at that time must be renewed."""
        return issued_at < self.before

    def left(self, now: datetime) -> timedelta:
        """Remaining time; after the interval at most LATE."""
        return max(self.before + self.within - now, min(self.within, LATE))


def order_of(cluster: Document) -> RenewalOrder | None:
    """The current order; None if there is none or it cannot be parsed."""
    begin, _, seconds = doc.annotations(cluster).get(RENEW, "").partition("/PT")
    try:
        return RenewalOrder(parse_time(begin), timedelta(seconds=int(seconds.removesuffix("S"))))
    except (ValueError, OverflowError):
        return None


def with_order(cluster: Document, order: RenewalOrder) -> dict[str, Any]:
    """A copy with this order in place of an earlier one."""
    text = f"{format_micro_time(order.before)}/PT{order.within // timedelta(seconds=1)}S"
    return doc.with_annotations(cluster, {RENEW: text})


def checked(within: timedelta) -> timedelta:
    """Raises InvalidError unless `within` is between 0 and LONGEST."""
    if not timedelta() <= within <= LONGEST:
        raise InvalidError(f"within: between 0 and {LONGEST // timedelta(hours=1)} hours")
    return within
