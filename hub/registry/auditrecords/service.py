"""Use cases about audit records: adding, finding, and removal by age or size."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from hub.api.auditrecords import AuditEntry, AuditQuery, AuditSize
from hub.ports import Transaction

TRIMMED_AT_ONCE = 2_000
"""Records removed per transaction, so that other writers do not wait long."""
SHORTENED_AT_ONCE = 200


def append(tx: Transaction, entries: Sequence[AuditEntry]) -> None:
    """Add records; existing ones are kept."""
    tx.audit.add(entries)


def find(tx: Transaction, query: AuditQuery) -> tuple[Sequence[AuditEntry], int]:
    """Records ordered by time, and the newest revision of the store."""
    return tx.audit.find(query), tx.changes.newest()


def trim(tx: Transaction, retention: timedelta) -> int:
    """Remove a batch of records older than `retention`; return their number."""
    return tx.audit.remove(TRIMMED_AT_ONCE, before=tx.now - retention).records


def sizes(tx: Transaction) -> tuple[int, Mapping[str, AuditSize]]:
    """Number of refusals of strangers, and the size of all other records by caller."""
    return sum(size.records for size in tx.audit.sizes(strangers=True).values()), tx.audit.sizes(strangers=False)


def shorten_strangers(tx: Transaction, limit: int) -> int:
    """Remove a batch of the oldest refusals of strangers; return their number."""
    return tx.audit.remove(min(limit, SHORTENED_AT_ONCE), strangers=True).records


def shorten(tx: Transaction, user: str, since: datetime | None) -> AuditSize:
    """Remove a batch of the oldest records of one caller. `since`: no record of the caller is older."""
    return tx.audit.remove(SHORTENED_AT_ONCE, strangers=False, user=user, since=since)
