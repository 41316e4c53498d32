"""Use cases about the ordered log level: one order for all replicas, which poll it."""

from datetime import timedelta

from hub.api import hubreplicas as rules
from hub.api.hubreplicas import LogLevelOrder
from hub.ports import Transaction

FACT = "log-level"


def standing(tx: Transaction) -> LogLevelOrder | None:
    """The current order; None: each replica uses the level of its settings."""
    order = rules.decode_log_level(tx.facts.get(FACT))
    return order if order is not None and order.is_due(tx.now) else None


def give(tx: Transaction, level: str, lasts: timedelta, actor: str) -> LogLevelOrder:
    """Replace the order. Raises InvalidError."""
    order = rules.order_log_level(level, lasts, actor, tx.now)
    tx.facts.set(FACT, rules.encode_log_level(order))
    return order


def take_back(tx: Transaction) -> None:
    tx.facts.set(FACT, rules.encode_log_level(None))
