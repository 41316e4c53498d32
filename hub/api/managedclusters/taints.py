"""Taints that say of a cluster what its availability says: rules of what is due, and when.

Source: OCM's taint controller (absent or Unknown: unreachable; False: unavailable; True: neither; always NoSelect, no value).
Ours beside it: a taint waits a moment for what else falls silent, and of a cluster that flaps until it holds still.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hub.api.managedclusters import cluster as rules
from hub.api.managedclusters.detach import has_parted
from hub.api.managedclusters.transition import Damping
from hub.api.meta import document as doc
from hub.api.meta.change import Document
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.timestamps import parse_time
from machinery.product import GROUP_SUFFIX

UNREACHABLE = f"cluster.{GROUP_SUFFIX}/unreachable"
UNAVAILABLE = f"cluster.{GROUP_SUFFIX}/unavailable"
OURS = (UNREACHABLE, UNAVAILABLE)
EFFECT = "NoSelect"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a taint waits. `delay`: after availability became Unknown, or while it was never told."""

    delay: timedelta = timedelta(seconds=30)
    damping: Damping = field(default_factory=Damping)

    def wait(self, available: Condition | None, *, flaps: bool) -> timedelta:
        """From the change of availability on, until the taints follow it."""
        is_silent = available is None or available.status == conditions.UNKNOWN
        delay = self.delay if is_silent else timedelta()
        return max(delay, self.damping.hold) if flaps else delay


def wanted(available: Condition | None) -> str | None:
    """The key of the taint that belongs to this availability; None: neither does, as when the agent said that it would go."""
    if has_parted(available):
        return None
    if available is None or available.status == conditions.UNKNOWN:
        return UNREACHABLE
    return UNAVAILABLE if available.status == conditions.FALSE else None


def tainted(cluster: Document) -> dict[str, Any]:
    """A copy whose taints say what its availability says."""
    key = wanted(rules.availability(cluster))
    before = [taint for taint in doc.sequence(cluster, "spec", "taints") if isinstance(taint, dict)]
    kept = [taint for taint in before if taint.get("key") not in OURS or (taint.get("key") == key and _is_ours(taint))]
    if key is not None and not any(taint.get("key") == key for taint in kept):
        kept.append({"key": key, "effect": EFFECT})
    if kept == before:
        return dict(cluster)
    others = {name: value for name, value in doc.mapping(cluster, "spec").items() if name != "taints"}
    return doc.with_part(cluster, "spec", {**others, "taints": kept} if kept else others)


def is_right(cluster: Document) -> bool:
    """Whether nothing is to be done. A cluster that is being deleted is left alone."""
    return doc.is_deleting(cluster) or tainted(cluster) == cluster


def changed_at(cluster: Document) -> datetime:
    """Since when availability is what it is."""
    available = rules.availability(cluster)
    if available is not None and available.last_transition_time is not None:
        return available.last_transition_time
    return parse_time(str(doc.mapping(cluster, "metadata").get("creationTimestamp")))


def _is_ours(taint: Document) -> bool:
    return taint.get("effect") == EFFECT and not taint.get("value")
