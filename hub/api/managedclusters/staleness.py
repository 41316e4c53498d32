"""When silent clusters are marked stale and when they are removed. Off by default.

A cluster is marked first and removed no earlier than `notice` after the mark, so that operators can check the marked clusters.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from hub.api.managedclusters import cluster as rules
from hub.api.meta import document as doc
from hub.api.meta.change import Document
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.timestamps import format_time

STALE = "ManagedClusterStale"
REASONS = frozenset((rules.SILENT.reason, rules.NEVER_JOINED.reason, rules.REVOKED.reason))
"""Clusters whose agent announced its departure are not stale."""
HEARD = Condition(STALE, conditions.FALSE, "HeardAgain", "The registration agent was heard again.")


@dataclass(frozen=True, slots=True)
class StalenessPolicy:
    """Length of silence until the mark and until the removal; zero disables it. A removal requires a mark."""

    mark: timedelta = timedelta()
    remove: timedelta = timedelta()

    @property
    def is_off(self) -> bool:
        return not self.mark

    @property
    def notice(self) -> timedelta:
        """Minimum time from mark to removal."""
        return max(self.remove - self.mark, timedelta())


class StalenessStep(StrEnum):
    """The next step for a cluster."""

    MARK = "mark"
    CLEAR = "clear"
    REMOVE = "remove"


def step(cluster: Document, policy: StalenessPolicy, now: datetime) -> StalenessStep | None:
    """The step that is due; None if none is."""
    marked = conditions.find(doc.conditions(cluster), STALE)
    is_marked = marked is not None and marked.status == conditions.TRUE
    since = silent_since(cluster)
    if doc.is_deleting(cluster) or (since is None and not is_marked):
        return None
    if since is None:
        return StalenessStep.CLEAR
    if policy.is_off or now - since < policy.mark:
        return None
    if not is_marked:
        return StalenessStep.MARK
    noticed = marked.last_transition_time if marked else None
    is_over = policy.remove and now - since >= policy.remove and noticed is not None and now - noticed >= policy.notice
    return StalenessStep.REMOVE if is_over else None


def silent_since(cluster: Document) -> datetime | None:
    """Start of the silence; None if the cluster is not silent or its agent announced its departure."""
    available = rules.availability(cluster)
    if available is None or available.status != conditions.UNKNOWN or available.reason not in REASONS:
        return None
    return available.last_transition_time


def mark(cluster: Document, policy: StalenessPolicy, now: datetime) -> Condition:
    """The condition of a stale cluster."""
    since = silent_since(cluster) or now
    removal = max(since + policy.remove, now + policy.notice)
    end = f" It is removed at {format_time(removal)} unless it is heard before." if policy.remove else ""
    return Condition(STALE, conditions.TRUE, "SilentForTooLong", f"Silent since {format_time(since)}.{end}")
