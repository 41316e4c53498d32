"""Use cases about retained history: compaction in short transactions, and its current state."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from hub.api.history import Ledger, Trimmed, Volume
from hub.ports import Transaction

PASSED_AT_ONCE = 200
"""Change-log rows per transaction, so that other writers do not wait long."""
MEASURED_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class HistoryStatus:
    """What is kept and its size. `began`: start of the readable past; None: nothing is written yet."""

    ledger: Ledger
    volume: Volume
    began: datetime | None


def compact(tx: Transaction, window: timedelta) -> Trimmed:
    """End the watch window at changes older than `window`."""
    return tx.changes.compact(tx.now - window, limit=PASSED_AT_ONCE)


def forget(tx: Transaction, kept: timedelta) -> Trimmed:
    """End the readable past at `kept` ago."""
    return tx.changes.forget(tx.now - kept, limit=PASSED_AT_ONCE)


def measure(tx: Transaction) -> bool:
    """Measure the size of a batch of new rows; return whether more may be left."""
    return tx.changes.measure(limit=MEASURED_AT_ONCE)


def make_room(tx: Transaction, most: int, reserve: int) -> Trimmed:
    """Remove the oldest past if the log exceeds `most` bytes or less than `reserve` bytes are free.

    Never removes what a watch may need.
    """
    left = tx.volume().left
    if tx.changes.ledger().bytes <= most and (left is None or left >= reserve):
        return Trimmed()
    return tx.changes.forget(None, limit=PASSED_AT_ONCE)


def standing(tx: Transaction) -> HistoryStatus:
    """The current state."""
    return HistoryStatus(tx.changes.ledger(), tx.volume(), tx.changes.began())
