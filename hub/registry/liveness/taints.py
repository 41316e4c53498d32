"""Use cases about the consequences of availability: taints, the marking as stale, and removal."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from hub.api.liveness import Brake
from hub.api.managed_fields import HUB_WRITER
from hub.api.managedclusters import availability, cluster as cluster_rules
from hub.api.managedclusters.availability import StalenessPolicy, StalenessStep, TaintDelays
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.registry.managedclusters import service as clusters
from machinery.identity import ClusterName
from machinery.meta import conditions
from machinery.meta.objects import Document, Key


@dataclass(frozen=True, slots=True)
class TaintOutcome:
    """Result of a check of one cluster's taints."""

    look_again: timedelta | None = None
    """Delay of the next check; None: at the next change."""
    due: bool = False
    """The taints must be written now."""
    held: bool = False
    """The brake postpones the write."""
    alarm: str = ""
    """Reason and message of the availability of a cluster that was tainted, for the log."""


@dataclass(frozen=True, slots=True)
class BatchContext:
    """Data that is common to all clusters of one transaction."""

    flapping: Mapping[ClusterName, datetime]
    """Flapping clusters, and the end of their flapping if they do not lose their availability again."""
    brake: Brake


def read_context(tx: Transaction, among: Collection[ClusterName], delays: TaintDelays, brake: Brake) -> BatchContext:
    """Return the BatchContext for a check of the clusters `among`, and cache these clusters in the transaction."""
    tx.objects.read_ahead(MANAGED_CLUSTERS, [Key("", name) for name in among])
    falls = tx.transitions.falls(tx.now - delays.damping.window, among)
    ends = {name: delays.damping.flaps_until(each) for name, each in falls.items()}
    return BatchContext({name: end for name, end in ends.items() if end is not None}, brake)


def due_taints(tx: Transaction, name: ClusterName, delays: TaintDelays, known: BatchContext) -> TaintOutcome:
    """Return whether the taints must be written now; never for a cluster that is missing or being deleted. Writes nothing."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    if stored is None or availability.has_right_taints(stored.document):
        return TaintOutcome()
    available = cluster_rules.availability(stored.document)
    flaps_until = known.flapping.get(name)
    changed_at = availability.availability_changed_at(stored.document)
    wait = delays.wait(available, flaps=flaps_until is not None)
    left = changed_at + wait - tx.now if changed_at <= tx.now else timedelta()  # else the clock was ahead
    if left > timedelta():
        return TaintOutcome(look_again=left if flaps_until is None else min(left, flaps_until - tx.now))
    held = known.brake.holds and is_silent(stored.document)
    return TaintOutcome(held=held, due=not held)


def taint(tx: Transaction, name: ClusterName, delays: TaintDelays, known: BatchContext, actor: str) -> TaintOutcome:
    """Write the taints if `due_taints` finds them due."""
    found = due_taints(tx, name, delays, known)
    if not found.due:
        return found
    stored = clusters.find(tx, name)
    clusters.put(tx, availability.tainted(stored.document), stored, actor, writer=HUB_WRITER)
    available = cluster_rules.availability(stored.document)
    if available is None or available.status == conditions.TRUE:
        return TaintOutcome(due=True)
    return TaintOutcome(due=True, alarm=f"{available.reason}: {available.message}")


def is_silent(cluster: Document) -> bool:
    """Whether the brake applies to the cluster: it has sent beats and is now silent, but has not announced a departure."""
    available = cluster_rules.availability(cluster)
    return available is not None and (available.status, available.reason) == (conditions.UNKNOWN, cluster_rules.SILENT.reason)


def apply_staleness_policy(tx: Transaction, name: ClusterName, policy: StalenessPolicy, actor: str) -> StalenessStep | None:
    """Mark a silent cluster as stale, clear this mark, or remove the cluster. Returns the step; None: no step was due."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    due = availability.staleness_step(stored.document, policy, tx.now) if stored is not None else None
    if stored is None or due is None:
        return None
    if due is StalenessStep.REMOVE:
        clusters.remove(tx, stored, actor)
    else:
        condition = (
            availability.HEARD if due is StalenessStep.CLEAR else availability.stale_condition(stored.document, policy, tx.now)
        )
        clusters.set_condition(tx, name, condition, actor)
    return due
