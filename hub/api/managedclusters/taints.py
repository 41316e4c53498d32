"""Taints that follow a cluster's availability, and their delays.

Source: OCM's taint controller (absent or Unknown: unreachable; False: unavailable; True: neither; always NoSelect, no value).
In addition to OCM, a taint waits for a delay, so that the brake can count further silent clusters, and is damped for flapping
clusters.
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
    """Delays of taints. `delay`: after availability became Unknown, or while it is absent."""

    delay: timedelta = timedelta(seconds=30)
    damping: Damping = field(default_factory=Damping)

    def wait(self, available: Condition | None, *, flaps: bool) -> timedelta:
        """Time from a change of availability until the taints follow it."""
        is_silent = available is None or available.status == conditions.UNKNOWN
        delay = self.delay if is_silent else timedelta()
        return max(delay, self.damping.hold) if flaps else delay


def wanted(available: Condition | None) -> str | None:
    """Key of the taint for this availability; None if no taint is due, for example after an announced departure."""
    if has_parted(available):
        return None
    if available is None or available.status == conditions.UNKNOWN:
        return UNREACHABLE
    return UNAVAILABLE if available.status == conditions.FALSE else None


def tainted(cluster: Document) -> dict[str, Any]:
    """A copy with the taints that its availability requires."""
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
    """Whether the taints need no change. A cluster that is being deleted is never changed."""
    return doc.is_deleting(cluster) or tainted(cluster) == cluster


def changed_at(cluster: Document) -> datetime:
    """Time of the last change of availability; creation time if there was none."""
    available = rules.availability(cluster)
    if available is not None and available.last_transition_time is not None:
        return available.last_transition_time
    return parse_time(str(doc.mapping(cluster, "metadata").get("creationTimestamp")))


def _is_ours(taint: Document) -> bool:
    return taint.get("effect") == EFFECT and not taint.get("value")
