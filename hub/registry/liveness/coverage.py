"""Use cases about who could be heard: every replica marks that it listens, and all together know since when."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from hub.api.liveness import coverage as rules
from hub.api.liveness.coverage import Checkpoint
from hub.ports import Transaction

GONE = timedelta(days=1)
"""The mark of a replica that is not there any more is kept for so long."""


def mark(tx: Transaction, replica: str, *, began: bool, jumped: bool) -> None:
    """Marks that beats can be stored now. `jumped`: this replica has seen the database's clock jump."""
    marks: Sequence[Checkpoint] = tx.marks.all()
    if jumped or any(each.is_ahead(tx.now) for each in marks):
        tx.marks.begin_anew(tx.now)
        marks = ()
    if began:
        tx.marks.forget(tx.now - GONE)
    tx.marks.put(rules.next_mark(replica, marks, tx.now, began=began))


def since(tx: Transaction) -> datetime | None:
    """From when on beats could be stored without a gap until now, by one replica or another; None: they cannot be."""
    return rules.heard_since(tx.marks.all(), tx.now)
