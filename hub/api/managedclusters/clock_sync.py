"""The condition that reports whether a cluster's clock agrees with the hub's.

Source: OCM's clock-sync controller (conditions, messages, limit of five lease durations, the annotation that skips the check).
Unlike there, a wrong clock is only reported and blocks nothing. The skew is measured from the agent's timestamps.
"""

from datetime import timedelta

from hub.api.liveness.lease import grace
from hub.api.managedclusters import cluster as rules
from hub.api.meta import document as doc
from hub.api.meta.change import Document
from machinery.meta import conditions
from machinery.meta.conditions import Condition

SKIPPED = "registration.open-cluster-management.io/skip-clock-sync-check"
"""Annotation: the value "true" skips the check and reports the clock as synced."""
SYNCED = Condition(
    conditions.CLOCK_SYNCED,
    conditions.TRUE,
    "ManagedClusterClockSynced",
    "The clock of the managed cluster is synced with the hub.",
)
OUT_OF_SYNC = Condition(
    conditions.CLOCK_SYNCED,
    conditions.FALSE,
    "ManagedClusterClockOutOfSync",
    "The clock of hub and agent is out of sync. This may cause the Unknown status and affect agent functionalities.",
)


def judged(cluster: Document, skew: timedelta, limit: timedelta) -> Condition:
    """The condition for this skew, ahead or behind. Zero as `limit` stands for five lease durations."""
    is_skipped = doc.annotations(cluster).get(SKIPPED) == "true"
    return SYNCED if is_skipped or abs(skew) < (limit or grace(rules.lease_duration(cluster))) else OUT_OF_SYNC


def is_news(cluster: Document, condition: Condition) -> bool:
    """Whether the cluster's stored condition has another status."""
    known = conditions.find(doc.conditions(cluster), condition.type)
    return known is None or known.status != condition.status
