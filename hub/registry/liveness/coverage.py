"""Use cases about coverage: each replica writes marks while it can store beats."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from hub.api import liveness as rules
from hub.api.liveness import Checkpoint
from hub.ports import Transaction

GONE = timedelta(days=1)
"""How long the mark of a replica that no longer exists is kept."""


def mark(tx: Transaction, replica: str, *, began: bool, jumped: bool) -> None:
    """Write the mark that beats can be stored now. `jumped`: this replica has detected a jump of the database's clock."""
    marks: Sequence[Checkpoint] = tx.marks.all()
    if jumped or any(each.is_ahead(tx.now) for each in marks):
        tx.marks.begin_anew(tx.now)
        marks = ()
    if began:
        tx.marks.forget(tx.now - GONE)
    tx.marks.put(rules.next_mark(replica, marks, tx.now, began=began))


def since(tx: Transaction) -> datetime | None:
    """Since when beats could be stored without a gap, by any replica; None: they cannot be stored."""
    return rules.covered_since(tx.marks.all(), tx.now)
