"""Audit records as they are kept, and how they are found."""

from dataclasses import dataclass
from datetime import datetime
from itertools import count
from uuid import uuid4

from hub.api.auditrecords.record import AuditFields, AuditRecord, fields_of, plain_record, written_record


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A record as it is kept. `replica` and `sequence` are its place, which no other record has.

    `replica` is the name of a replica and an id of one of its runs. `fields` and `at` repeat what the document says.
    """

    replica: str
    sequence: int
    at: datetime
    fields: AuditFields
    document: bytes


class Numbering:
    """Gives records their places. `suffix` marks a kind of records in all of them."""

    def __init__(self, replica: str, suffix: str = "") -> None:
        self.replica = f"{replica}.{uuid4().hex[:8]}{suffix}"
        self._numbers = count(1)

    def entry(self, record: AuditRecord) -> AuditEntry:
        """Never fails for what clients wrote into the record."""
        record = plain_record(record)
        return AuditEntry(self.replica, next(self._numbers), record.at, fields_of(record), written_record(record))


def named(at: datetime, replica: str, sequence: int) -> str:
    """A record's name on the API: names sort by time. `20261121t210314.123456z-<replica>-<sequence>`."""
    return f"{at:%Y%m%dt%H%M%S.%fz}-{replica}-{sequence:012}"


@dataclass(frozen=True, slots=True)
class AuditPosition:
    """Where a record stands among all of them: ordered by time, then by replica."""

    at: datetime
    replica: str
    sequence: int


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which records: `equal` and `unequal` are values by field (`user`, `verb`, ...); `since` and `until` are inclusive."""

    equal: tuple[tuple[str, str], ...] = ()
    unequal: tuple[tuple[str, str], ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    after: AuditPosition | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class AuditSize:
    """How many records, and their bytes in the database."""

    records: int = 0
    bytes: int = 0
    floor: datetime | None = None
    """No record of the same caller that is left is older; None: unknown."""

    def without(self, gone: "AuditSize") -> "AuditSize":
        """What is left when these have gone."""
        return AuditSize(self.records - gone.records, self.bytes - gone.bytes, gone.floor)
