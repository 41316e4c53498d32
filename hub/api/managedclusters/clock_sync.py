"""Whether a cluster's clock and the hub's agree, measured by the hub's stamp of what the agent sent.

Source: OCM's clock-sync controller (conditions, messages, five lease durations, the annotation that turns it off). Unlike
there, a clock that is wrong is reported and stops nothing.
"""

from datetime import timedelta

from hub.api.liveness.lease import grace
from hub.api.managedclusters import cluster as rules
from hub.api.meta import document as doc
from hub.api.meta.change import Document
from machinery.meta import conditions
from machinery.meta.conditions import Condition

SKIPPED = "registration.open-cluster-management.io/skip-clock-sync-check"
"""Annotation: with the value "true" the clock passes for right."""
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
    """`skew`: how far the agent's clock is ahead or behind; `limit`: from which on it is wrong, zero for five leases."""
    is_skipped = doc.annotations(cluster).get(SKIPPED) == "true"
    return SYNCED if is_skipped or abs(skew) < (limit or grace(rules.lease_duration(cluster))) else OUT_OF_SYNC


def is_news(cluster: Document, condition: Condition) -> bool:
    """Whether the cluster's condition says something else."""
    known = conditions.find(doc.conditions(cluster), condition.type)
    return known is None or known.status != condition.status
