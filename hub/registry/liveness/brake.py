"""Use cases about the brake: it is looked at inside the transactions that it may hold."""

from typing import Any

from hub.api.core.event import NORMAL, WARNING, EventRecord
from hub.api.liveness import brake as rules
from hub.api.liveness.brake import Brake, BrakeLimits
from hub.api.managedclusters import cluster
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.selectable_fields import CONDITIONS
from hub.ports import Transaction
from hub.registry.events import service as events
from machinery.meta import conditions
from machinery.product import GROUP_SUFFIX

FACT = "brake"
FLEET: dict[str, Any] = {
    "apiVersion": f"hub.{GROUP_SUFFIX}/v1alpha1",
    "kind": "ClusterSummary",
    "metadata": {"name": "fleet"},
}


def now(tx: Transaction) -> Brake:
    """As it was last judged."""
    return rules.decoded(tx.facts.get(FACT))


def judge(tx: Transaction, limits: BrakeLimits) -> Brake:
    """As it has to be now; `keep` writes that down."""
    known = now(tx)
    silent = tx.transitions.silent(known.counts_from(limits, tx.now), cluster.SILENT.reason)
    if not silent and not known.holds:
        return known
    states = tx.objects.tally(MANAGED_CLUSTERS, CONDITIONS + conditions.AVAILABLE)
    fleet = states.get(conditions.TRUE, 0) + states.get(conditions.FALSE, 0) + silent
    return known.judged(limits, silent, fleet, tx.now)


def keep(tx: Transaction, limits: BrakeLimits, actor: str) -> tuple[Brake, EventRecord | None]:
    """Judges and writes down, with the Event that tells of it, once for the whole fleet; what there is to tell in the log.

    The Event is no later transaction's: whoever dies after this one, or does not hear of its commit, would never write it.
    """
    before = now(tx)
    brake = judge(tx, limits)
    if brake == before:
        return brake, None
    tx.facts.set(FACT, rules.encoded(brake))
    told = EventRecord("", FLEET, "BrakeReleased", "most of the clusters that had fallen silent are back", NORMAL)
    if brake.holds:
        told = EventRecord("", FLEET, "BrakeHolds", held(brake), WARNING)
    events.tell(tx, [told], actor)
    return brake, told


def release(tx: Transaction, actor: str) -> Brake:
    """An operator's word: what was held goes on, and only clusters that fall silent from now on count."""
    before = now(tx)
    if not before.holds:
        return before
    brake = before.let_go(tx.now)
    tx.facts.set(FACT, rules.encoded(brake))
    events.tell(tx, [EventRecord("", FLEET, "BrakeReleased", f"released by {actor}")], actor)
    return brake


def held(brake: Brake) -> str:
    """What it does, for people."""
    return (
        f"{brake.silent} of {brake.fleet} living clusters fell silent together: their taints and their removal are held until "
        "most of them are back, or until `hubctl release-brake`"
    )
