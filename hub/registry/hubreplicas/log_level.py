"""Use cases about how much the hub logs: one order for all replicas, each of which looks for it now and then."""

from datetime import timedelta

from hub.api.hubreplicas import log_level as rules
from hub.api.hubreplicas.log_level import LogLevelOrder
from hub.ports import Transaction

FACT = "log-level"


def standing(tx: Transaction) -> LogLevelOrder | None:
    """What counts now; None: each replica logs what it was started with."""
    order = rules.decoded(tx.facts.get(FACT))
    return order if order is not None and order.is_due(tx.now) else None


def give(tx: Transaction, level: str, lasts: timedelta, actor: str) -> LogLevelOrder:
    """Takes the place of what was ordered before. Raises InvalidError."""
    order = rules.ordered(level, lasts, actor, tx.now)
    tx.facts.set(FACT, rules.encoded(order))
    return order


def take_back(tx: Transaction) -> None:
    tx.facts.set(FACT, rules.encoded(None))
