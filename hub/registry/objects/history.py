"""Use cases about the past: how long it is kept, in steps of one short transaction each, and what it says when it is asked."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from hub.api.objects.history import Ledger, Trimmed, Volume
from hub.ports import Transaction

PASSED_AT_ONCE = 200
"""Rows of the log that one transaction passes: others write meanwhile."""
MEASURED_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class HistoryStanding:
    """What is kept, and what that takes. `began`: from when on the past can be read; None: nothing is written yet."""

    ledger: Ledger
    volume: Volume
    began: datetime | None


def compact(tx: Transaction, window: timedelta) -> Trimmed:
    """Watches resume from what is at most `window` old."""
    return tx.changes.compact(tx.now - window, limit=PASSED_AT_ONCE)


def forget(tx: Transaction, kept: timedelta) -> Trimmed:
    """The past is read as far back as it is kept."""
    return tx.changes.forget(tx.now - kept, limit=PASSED_AT_ONCE)


def measure(tx: Transaction) -> bool:
    """Counts a portion of what was written since; whether more may be to be counted."""
    return tx.changes.measure(limit=MEASURED_AT_ONCE)


def make_room(tx: Transaction, most: int, reserve: int) -> Trimmed:
    """Where the log takes more than `most`, or less than `reserve` is left for the database, the oldest of the past goes.

    Never what a watch may need. In bytes.
    """
    left = tx.volume().left
    if tx.changes.ledger().bytes <= most and (left is None or left >= reserve):
        return Trimmed()
    return tx.changes.forget(None, limit=PASSED_AT_ONCE)


def standing(tx: Transaction) -> HistoryStanding:
    """What is kept now."""
    return HistoryStanding(tx.changes.ledger(), tx.volume(), tx.changes.began())
