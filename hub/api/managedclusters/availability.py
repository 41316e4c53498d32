"""Availability of clusters and what follows from it: announced departures, transitions, taints, staleness, the clock.

Source of the taints: OCM's taint controller (absent or Unknown: unreachable; False: unavailable; True: neither; always
NoSelect, no value). Unlike in OCM, taints are delayed, so that the brake can first count more silent clusters, and delayed
longer for flapping clusters.

Marking and removal of silent clusters is off by default. A cluster is marked first and removed no earlier than `notice` later,
so that operators can check the marked clusters.

Source of the clock's condition: OCM's clock-sync controller (conditions, messages, limit of five lease durations, the
annotation that skips the check). Unlike in OCM, a wrong clock blocks nothing. The skew is computed from the agent's timestamps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from hub.api.liveness import grace
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.managedclusters.cluster import NEVER_JOINED, SILENT
from hub.api.meta import document as doc
from machinery.identity import AgentId, ClusterName, HubId
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time, parse_time
from machinery.product import GROUP_SUFFIX

MOVED = replace(SILENT, reason="ManagedClusterMoved", message="The registration agent has moved to another hub.")
STANDBY = replace(
    SILENT, reason="ManagedClusterStandby", message="The registration agent reports to another hub; this one is a standby hub."
)
PARTED = frozenset((MOVED.reason, STANDBY.reason))
"""Reasons for Unknown after the agent announced its departure. A cluster with this reason is not silent."""


@dataclass(frozen=True, slots=True)
class Departure:
    """An agent's report that another hub owns the agent."""

    cluster: ClusterName
    owner: HubId
    """The hub that owns the agent; "": no hub owns it yet."""
    epoch: int = 0
    agent: AgentId | None = None
    """The reporting agent; None if the report does not name it."""


def silence_condition(owner: str | None, *, heard: bool) -> Condition:
    """Return the condition Available at the end of the grace. `heard`: the hub has received a beat of the cluster.

    `owner`: the hub that owns the agent, as the agent announced ("": none yet); None: it announced nothing.
    """
    if owner is None:
        return SILENT if heard else NEVER_JOINED
    if not owner:
        return replace(STANDBY, message="The registration agent reports to no hub yet; this one is a standby hub.")
    condition = MOVED if heard else STANDBY
    return replace(condition, message=condition.message.replace("another hub", f"the hub {owner}"))


def has_parted(available: Condition | None) -> bool:
    """Whether the cluster is Unknown only because its agent uses another hub."""
    return available is not None and available.status == conditions.UNKNOWN and available.reason in PARTED


DELETED = "Deleted"
"""Reason of the last transition of a deleted cluster."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of ManagedClusterConditionAvailable. `before`, `status`: old and new status; "" if the condition is absent."""

    cluster: ClusterName
    uid: str
    """Uid of the ManagedCluster; a later cluster of the same name has another uid."""
    at: datetime
    before: str
    status: str
    reason: str
    actor: str


def transition(
    cluster: Document, before: Condition | None, after: Condition | None, at: datetime, actor: str
) -> Transition | None:
    """Return the transition that a write of the cluster causes; None if status and reason are unchanged."""
    old = (before.status, before.reason) if before else ("", "")
    new = (after.status, after.reason) if after else ("", DELETED)
    if old == new or (before is None and after is None):
        return None
    uid = str(doc.mapping(cluster, "metadata").get("uid"))
    return Transition(ClusterName(doc.name(cluster)), uid, at, old[0], *new, actor)


FLAPS_WITHIN = timedelta(days=1)
"""Span in which the query field `flaps` counts losses of availability."""


@dataclass(frozen=True, slots=True)
class Damping:
    """A cluster flaps after `threshold` falls (losses of availability) in `window`. `hold` then delays taints and alarms."""

    threshold: int = 3
    window: timedelta = timedelta(hours=1)
    hold: timedelta = timedelta(minutes=5)

    def flaps_until(self, falls: Sequence[datetime]) -> datetime | None:
        """Return when the flapping ends if no fall follows; None: the cluster does not flap. A threshold of 0 disables damping.

        `falls`: the falls within the window, oldest first.
        """
        return falls[-self.threshold] + self.window if 0 < self.threshold <= len(falls) else None


UNREACHABLE = f"cluster.{GROUP_SUFFIX}/unreachable"
UNAVAILABLE = f"cluster.{GROUP_SUFFIX}/unavailable"
OURS = (UNREACHABLE, UNAVAILABLE)
EFFECT = "NoSelect"


@dataclass(frozen=True, slots=True)
class TaintDelays:
    """Delays of taints. `delay`: applies if the condition Available is Unknown or absent. `damping`: for flapping clusters."""

    delay: timedelta = timedelta(seconds=30)
    damping: Damping = field(default_factory=Damping)

    def wait(self, available: Condition | None, *, flaps: bool) -> timedelta:
        """Return the time from a change of availability until the taints follow it."""
        is_silent = available is None or available.status == conditions.UNKNOWN
        delay = self.delay if is_silent else timedelta()
        return max(delay, self.damping.hold) if flaps else delay


def wanted_taint(available: Condition | None) -> str | None:
    """Return the key of the taint for this availability; None if no taint is due, for example after an announced departure."""
    if has_parted(available):
        return None
    if available is None or available.status == conditions.UNKNOWN:
        return UNREACHABLE
    return UNAVAILABLE if available.status == conditions.FALSE else None


def tainted(cluster: Document) -> dict[str, Any]:
    """Return a copy of `cluster` with the taints that its availability requires."""
    key = wanted_taint(cluster_rules.availability(cluster))

    before = [taint for taint in doc.sequence(cluster, "spec", "taints") if isinstance(taint, dict)]
    kept = [
        taint
        for taint in before
        if taint.get("key") not in OURS or (taint["key"], taint.get("effect"), taint.get("value") or "") == (key, EFFECT, "")
    ]
    if key is not None and not any(taint.get("key") == key for taint in kept):
        kept.append({"key": key, "effect": EFFECT})
    if kept == before:
        return dict(cluster)
    others = {name: value for name, value in doc.mapping(cluster, "spec").items() if name != "taints"}
    return doc.with_part(cluster, "spec", {**others, "taints": kept} if kept else others)


def has_right_taints(cluster: Document) -> bool:
    """Return whether the taints need no change. The taints of a cluster that is being deleted never need a change."""
    return doc.is_deleting(cluster) or tainted(cluster) == cluster


def availability_changed_at(cluster: Document) -> datetime:
    """Return the time of the last change of availability; the creation time if there was none."""
    available = cluster_rules.availability(cluster)
    if available is not None and available.last_transition_time is not None:
        return available.last_transition_time
    return parse_time(str(doc.mapping(cluster, "metadata").get("creationTimestamp")))


STALE = "ManagedClusterStale"
STALE_REASONS = frozenset((cluster_rules.SILENT.reason, cluster_rules.NEVER_JOINED.reason, cluster_rules.REVOKED.reason))
"""Reasons of availability with which a cluster can become stale; not those after an announced departure."""
HEARD = Condition(STALE, conditions.FALSE, "HeardAgain", "The registration agent sends heartbeats again.")


@dataclass(frozen=True, slots=True)
class StalenessPolicy:
    """Lengths of a silence. `mark`: until a cluster is marked as stale; `remove`: until it is removed. Zero disables a step."""

    mark: timedelta = timedelta()
    remove: timedelta = timedelta()

    @property
    def is_off(self) -> bool:
        return not self.mark

    @property
    def notice(self) -> timedelta:
        """Minimum time from the marking to the removal."""
        return max(self.remove - self.mark, timedelta())


class StalenessStep(StrEnum):
    MARK = "mark"
    CLEAR = "clear"
    REMOVE = "remove"


def staleness_step(cluster: Document, policy: StalenessPolicy, now: datetime) -> StalenessStep | None:
    """Return the StalenessStep that is due; None: no step is due."""
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
    """Return the start of the silence; None if the cluster is not silent, or its agent announced its departure."""
    available = cluster_rules.availability(cluster)
    if available is None or available.status != conditions.UNKNOWN or available.reason not in STALE_REASONS:
        return None
    return available.last_transition_time


def stale_condition(cluster: Document, policy: StalenessPolicy, now: datetime) -> Condition:
    since = silent_since(cluster) or now
    removal = max(since + policy.remove, now + policy.notice)
    end = f" The hub removes it at {format_time(removal)} unless its agent sends a heartbeat before." if policy.remove else ""
    return Condition(STALE, conditions.TRUE, "SilentForTooLong", f"Silent since {format_time(since)}.{end}")


SKIPPED = "registration.open-cluster-management.io/skip-clock-sync-check"
"""Annotation: the value "true" skips the check and reports the clock as synced."""
_clock = partial(Condition, conditions.CLOCK_SYNCED)
SYNCED = _clock(conditions.TRUE, "ManagedClusterClockSynced", "The clock of the managed cluster is synced with the hub.")
OUT_OF_SYNC = _clock(
    conditions.FALSE,
    "ManagedClusterClockOutOfSync",
    "The clock of hub and agent is out of sync. This may cause the Unknown status and affect agent functionalities.",
)


def clock_condition(cluster: Document, skew: timedelta, limit: timedelta) -> Condition:
    """Return the condition of a clock that is ahead or behind by `skew`. A `limit` of zero means five lease durations."""
    is_skipped = doc.annotations(cluster).get(SKIPPED) == "true"
    return SYNCED if is_skipped or abs(skew) < (limit or grace(cluster_rules.lease_duration(cluster))) else OUT_OF_SYNC


def is_clock_news(cluster: Document, condition: Condition) -> bool:
    """Return whether the cluster lacks a condition of this type, or has the condition with another status."""
    known = conditions.find(doc.conditions(cluster), condition.type)
    return known is None or known.status != condition.status
