"""Metrics of leader election, and of the controllers, which only the leader runs."""

from hub.replica.leader_election import Leading
from machinery.observability.metrics import Registry, counter, gauge, histogram

LEADS = gauge("hub_leader", "1: this replica leads; 0: it does not. One replica does.")
TERM = gauge("hub_leader_term", "The term in which this replica leads.")
GAINED = counter("hub_leader_gained_total", "How often this replica came to lead.")
LOST = counter("hub_leader_lost_total", "How often this replica ceased to lead, by why.", "cause")
FAILURES = counter("hub_leader_lock_failures_total", "Looks at the leader's lock, and renewals of it, that failed.")
RENEWED = counter("hub_leader_renewals_total", "Renewals of the leader's lock.")
FENCED = counter(
    "hub_leader_writes_refused_total", "Writes of a term that was over: unsent, or fenced by the database.", "where"
)
QUEUES = gauge("hub_controller_queue", "Keys that wait in a controller's queue.", "controller")
STEPS = counter("hub_controller_reconciles_total", "Steps of a controller.", "controller", "result")
SECONDS = histogram("hub_controller_reconcile_seconds", "How long steps of a controller took.", "controller")
BECAME = counter("hub_cluster_transitions_total", "Clusters whose condition Available became True, False or Unknown.", "status")
METRICS = (LEADS, TERM, GAINED, LOST, FAILURES, RENEWED, FENCED, QUEUES, STEPS, SECONDS, BECAME)


def add_leader(registry: Registry, leading: Leading) -> None:
    flag, tally = leading.leadership, leading.tally
    registry.bind(LEADS, lambda: int(flag.term is not None))
    registry.bind(TERM, lambda: flag.term)
    registry.bind(GAINED, lambda: tally.gained)
    registry.bind(LOST, lambda: tally.lost)
    registry.bind(FAILURES, lambda: tally.failures)
    registry.bind(RENEWED, lambda: tally.renewals)
    registry.bind(FENCED, lambda: {"unsent": flag.refused, "fenced": flag.fenced})
    registry.bind(QUEUES, leading.waiting)
    registry.bind(
        STEPS,
        lambda: {(each.name, result): count for each in leading.controllers for result, count in each.outcomes.items()},
    )
    registry.bind(SECONDS, lambda: {each.name: each.seconds for each in leading.controllers})
    registry.bind(BECAME, lambda: leading.chronicle.availability if leading.chronicle else None)
