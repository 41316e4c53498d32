"""A renewal that an operator has ordered: an annotation of the ManagedCluster, an interval of ISO 8601.

Every certificate that was issued before the beginning of the interval is to be renewed within it. So the order is one moment
that stays: whoever has renewed is done, and who was off for the whole of it renews when it comes back.
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
"""For who comes when the time is over: a fleet that comes back together does not renew at one moment."""


@dataclass(frozen=True, slots=True)
class RenewalOrder:
    """`before`: the database's time when it was given."""

    before: datetime
    within: timedelta

    def asks(self, issued_at: datetime) -> bool:
        """Whether a certificate of that time is meant."""
        return issued_at < self.before

    def left(self, now: datetime) -> timedelta:
        """How much of the time is left; a moment where it is over."""
        return max(self.before + self.within - now, min(self.within, LATE))


def order_of(cluster: Document) -> RenewalOrder | None:
    """The order that stands; None: none does, or it cannot be read."""
    begin, _, seconds = doc.annotations(cluster).get(RENEW, "").partition("/PT")
    try:
        return RenewalOrder(parse_time(begin), timedelta(seconds=int(seconds.removesuffix("S"))))
    except (ValueError, OverflowError):
        return None


def with_order(cluster: Document, order: RenewalOrder) -> dict[str, Any]:
    """A copy with this order in place of the one before."""
    text = f"{format_micro_time(order.before)}/PT{order.within // timedelta(seconds=1)}S"
    return doc.with_annotations(cluster, {RENEW: text})


def checked(within: timedelta) -> timedelta:
    """Raises InvalidError."""
    if not timedelta() <= within <= LONGEST:
        raise InvalidError(f"within: between 0 and {LONGEST // timedelta(hours=1)} hours")
    return within
