"""Use cases about what follows from availability: taints, and what becomes of clusters that stay silent."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from hub.api.core.event import WARNING, EventRecord
from hub.api.liveness.brake import Brake
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.managedclusters import staleness as stale
from hub.api.managedclusters import taints as rules
from hub.api.managedclusters.staleness import StalenessPolicy, StalenessStep
from hub.api.managedclusters.taints import Patience
from hub.api.meta.change import MANAGED_CLUSTERS, Document, Key
from hub.api.objects.managed_fields import HUB_WRITER
from hub.ports import Transaction
from hub.registry.managedclusters import service as clusters
from machinery.identity import ClusterName
from machinery.meta import conditions


@dataclass(frozen=True, slots=True)
class TaintOutcome:
    """What came of a look at one cluster's taints."""

    look_again: timedelta | None = None
    """After this time; None: at the next change."""
    due: bool = False
    """They are to be written now."""
    held: bool = False
    """They would be, but for the brake."""
    told: EventRecord | None = None
    """They were written, and this is the news."""


@dataclass(frozen=True, slots=True)
class BatchContext:
    """What is the same for all clusters of one transaction."""

    flapping: Mapping[ClusterName, datetime]
    """Those that flap, and until when they do if they do not fall again."""
    brake: Brake


def circumstances(tx: Transaction, among: Collection[ClusterName], patience: Patience, brake: Brake) -> BatchContext:
    """`among`: the clusters that will be looked at."""
    falls = tx.transitions.falls(tx.now - patience.damping.window, among)
    ends = {name: patience.damping.flaps_until(each) for name, each in falls.items()}
    return BatchContext({name: end for name, end in ends.items() if end is not None}, brake)


def look(tx: Transaction, name: ClusterName, patience: Patience, known: BatchContext) -> TaintOutcome:
    """What is due; it only looks. Nothing is due of a cluster that is gone or going."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    if stored is None or rules.is_right(stored.document):
        return TaintOutcome()
    available = cluster_rules.availability(stored.document)
    flaps_until = known.flapping.get(name)
    left = rules.changed_at(stored.document) + patience.wait(available, flaps=flaps_until is not None) - tx.now
    if left > timedelta():
        return TaintOutcome(look_again=left if flaps_until is None else min(left, flaps_until - tx.now))
    held = known.brake.holds and is_silent(stored.document)
    return TaintOutcome(held=held, due=not held)


def taint(tx: Transaction, name: ClusterName, patience: Patience, known: BatchContext, actor: str) -> TaintOutcome:
    """Writes what `look` finds due."""
    found = look(tx, name, patience, known)
    if not found.due:
        return found
    stored = clusters.find(tx, name)
    clusters.put(tx, rules.tainted(stored.document), stored, actor, writer=HUB_WRITER)
    return TaintOutcome(due=True, told=_alarm(stored.document))


def is_silent(cluster: Document) -> bool:
    """Whether it is among those that the brake is about: it was heard of, and has stopped without a word."""
    available = cluster_rules.availability(cluster)
    return available is not None and (available.status, available.reason) == (conditions.UNKNOWN, cluster_rules.SILENT.reason)


def _alarm(cluster: Document) -> EventRecord | None:
    available = cluster_rules.availability(cluster)
    if available is None or available.status == conditions.TRUE:
        return None
    name = str(cluster["metadata"]["name"])
    return EventRecord(name, cluster, available.reason, available.message, WARNING)


def age(tx: Transaction, name: ClusterName, policy: StalenessPolicy, actor: str) -> StalenessStep | None:
    """Marks, clears or removes a cluster that stays silent, or does not any more; returns what it did."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    due = stale.step(stored.document, policy, tx.now) if stored is not None else None
    if stored is None or due is None:
        return None
    if due is StalenessStep.REMOVE:
        clusters.remove(tx, stored, actor)
    else:
        condition = stale.HEARD if due is StalenessStep.CLEAR else stale.mark(stored.document, policy, tx.now)
        clusters.set_condition(tx, name, condition, actor)
    return due
