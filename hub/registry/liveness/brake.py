"""Use cases about the brake. A transaction evaluates the brake before it writes what the brake may postpone."""

from typing import Any

from hub.api import liveness
from hub.api.events import NORMAL, WARNING, EventRecord
from hub.api.liveness import Brake, BrakeLimits
from hub.api.managedclusters import cluster
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.selection import CONDITIONS
from hub.ports import Transaction
from hub.registry import events
from machinery.meta import conditions
from machinery.product import GROUP_SUFFIX

FACT = "brake"
FLEET: dict[str, Any] = {"apiVersion": f"hub.{GROUP_SUFFIX}/v1alpha1", "kind": "ClusterSummary", "metadata": {"name": "fleet"}}


def now(tx: Transaction) -> Brake:
    """Return the last stored state of the brake."""
    return liveness.decode_brake(tx.facts.get(FACT))


def evaluate(tx: Transaction, limits: BrakeLimits) -> Brake:
    """Return the present state of the brake, without storing it. `keep` stores the state."""
    known = now(tx)
    silent = tx.transitions.silent(known.counts_from(limits, tx.now), cluster.SILENT.reason)
    if not silent and not known.holds:
        return known
    states = tx.objects.tally(MANAGED_CLUSTERS, CONDITIONS + conditions.AVAILABLE)
    fleet = states.get(conditions.TRUE, 0) + states.get(conditions.FALSE, 0) + silent
    return known.next_state(limits, silent, fleet, tx.now)


def keep(tx: Transaction, limits: BrakeLimits, actor: str) -> tuple[Brake, EventRecord | None]:
    """Evaluate and store the brake. Returns the brake, and the Event for the log if the brake has changed.

    The Event is written in the same transaction, so that it is not lost if the replica dies after the commit.
    """
    before = now(tx)
    brake = evaluate(tx, limits)
    if brake == before:
        return brake, None
    tx.facts.set(FACT, liveness.encode_brake(brake))
    record = EventRecord("", FLEET, "BrakeReleased", "most of the silent clusters have sent heartbeats again", NORMAL)
    if brake.holds:
        record = EventRecord("", FLEET, "BrakeHolds", brake_message(brake), WARNING)
    events.record(tx, [record], actor)
    return brake, record


def release(tx: Transaction, actor: str) -> Brake:
    """Release the brake: postponed taints and removals continue. Only clusters that become silent later activate it again."""
    before = now(tx)
    if not before.holds:
        return before
    brake = before.after_release(tx.now)
    tx.facts.set(FACT, liveness.encode_brake(brake))
    events.record(tx, [EventRecord("", FLEET, "BrakeReleased", f"released by {actor}")], actor)
    return brake


def brake_message(brake: Brake) -> str:
    return (
        f"{brake.silent} of {brake.fleet} living clusters became silent together: their taints and removals are postponed "
        "until most of them send heartbeats again, or until `hubctl release-brake`"
    )
