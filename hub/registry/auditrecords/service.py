"""Use cases about audit records: added, found, and removed by age or for room."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from hub.api.auditrecords.query import AuditEntry, AuditQuery, AuditSize
from hub.ports import Transaction

TRIMMED_AT_ONCE = 2_000
"""Records that go in one transaction: others wait for it."""
SHORTENED_AT_ONCE = 200


def append(tx: Transaction, entries: Sequence[AuditEntry]) -> None:
    """Adds records; those that are there already count as added."""
    tx.audit.add(entries)


def find(tx: Transaction, query: AuditQuery) -> tuple[Sequence[AuditEntry], int]:
    """Records in the order of time, and the newest revision of the store."""
    return tx.audit.find(query), tx.changes.newest()


def trim(tx: Transaction, retention: timedelta) -> int:
    """Removes what is older than `retention`, a part at a time; how many records went."""
    return tx.audit.remove(TRIMMED_AT_ONCE, before=tx.now - retention).records


def sizes(tx: Transaction) -> tuple[int, Mapping[str, AuditSize]]:
    """How many refusals of strangers there are, and what the other records take, by caller."""
    return sum(size.records for size in tx.audit.sizes(strangers=True).values()), tx.audit.sizes(strangers=False)


def shorten_strangers(tx: Transaction, limit: int) -> int:
    """Removes a portion of the oldest refusals of strangers; how many went."""
    return tx.audit.remove(min(limit, SHORTENED_AT_ONCE), strangers=True).records


def shorten(tx: Transaction, user: str, since: datetime | None) -> AuditSize:
    """Removes a portion of the oldest records of one caller. `since`: it has no older ones."""
    return tx.audit.remove(SHORTENED_AT_ONCE, strangers=False, user=user, since=since)
