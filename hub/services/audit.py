"""Use cases about audit records: added, found, and removed by age or for room."""

from collections.abc import Sequence
from datetime import timedelta

from hub.domain.auditlog import AuditQuery, AuditSize, Entry
from hub.ports import Transaction

TRIMMED_AT_ONCE = 2_000
"""Records that go in one transaction: others wait for it."""
SHORTENED_AT_ONCE = 200


def append(tx: Transaction, entries: Sequence[Entry]) -> None:
    """Adds records; those that are there already count as added."""
    tx.audit.add(entries)


def find(tx: Transaction, query: AuditQuery) -> tuple[Sequence[Entry], int]:
    """Records in the order of time, and the newest revision of the store."""
    return tx.audit.find(query), tx.changes.newest()


def trim(tx: Transaction, retention: timedelta) -> int:
    """Removes what is older than `retention`, a part at a time; how many records went."""
    return tx.audit.remove(TRIMMED_AT_ONCE, before=tx.now - retention).records


def sizes(tx: Transaction) -> tuple[AuditSize, AuditSize]:
    """The refusals of strangers, and all other records."""
    return tx.audit.size(strangers=True), tx.audit.size(strangers=False)


def shorten(tx: Transaction, limit: int, *, strangers: bool) -> AuditSize:
    """Removes a portion of the oldest refusals of strangers, or of the other records."""
    return tx.audit.remove(min(limit, SHORTENED_AT_ONCE), strangers=strangers)
