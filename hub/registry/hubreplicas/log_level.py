"""Use cases about the ordered log level: one order for all replicas, which poll it."""

from datetime import timedelta

from hub.api.hubreplicas import log_level as rules
from hub.api.hubreplicas.log_level import LogLevelOrder
from hub.ports import Transaction

FACT = "log-level"


def standing(tx: Transaction) -> LogLevelOrder | None:
    """The current order; None: each replica uses the level of its settings."""
    order = rules.decoded(tx.facts.get(FACT))
    return order if order is not None and order.is_due(tx.now) else None


def give(tx: Transaction, level: str, lasts: timedelta, actor: str) -> LogLevelOrder:
    """Replace the order. Raises InvalidError."""
    order = rules.ordered(level, lasts, actor, tx.now)
    tx.facts.set(FACT, rules.encoded(order))
    return order


def take_back(tx: Transaction) -> None:
    tx.facts.set(FACT, rules.encoded(None))
