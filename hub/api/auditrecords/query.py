"""Stored audit records, and queries for them."""

from dataclasses import dataclass
from datetime import datetime
from itertools import count
from uuid import uuid4

from hub.api.auditrecords.record import AuditFields, AuditRecord, fields_of, plain_record, written_record


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A stored record. `replica` and `sequence` identify it uniquely.

    `replica`: name of a replica plus an id of one run of its process. `fields` and `at` duplicate values of the document.
    """

    replica: str
    sequence: int
    at: datetime
    fields: AuditFields
    document: bytes


class Numbering:
    """Assigns identities to records. `suffix` marks one class of records."""

    def __init__(self, replica: str, suffix: str = "") -> None:
        self.replica = f"{replica}.{uuid4().hex[:8]}{suffix}"
        self._numbers = count(1)

    def entry(self, record: AuditRecord) -> AuditEntry:
        """Never fails, whatever text clients have sent."""
        record = plain_record(record)
        return AuditEntry(self.replica, next(self._numbers), record.at, fields_of(record), written_record(record))


def named(at: datetime, replica: str, sequence: int) -> str:
    """A record's name in the API, sorted by time: `20261121t210314.123456z-<replica>-<sequence>`."""
    return f"{at:%Y%m%dt%H%M%S.%fz}-{replica}-{sequence:012}"


@dataclass(frozen=True, slots=True)
class AuditPosition:
    """Position of a record, ordered by time, then by replica."""

    at: datetime
    replica: str
    sequence: int


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """`equal`, `unequal`: values by field (`user`, `verb`, ...); `since`, `until`: inclusive."""

    equal: tuple[tuple[str, str], ...] = ()
    unequal: tuple[tuple[str, str], ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    after: AuditPosition | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class AuditSize:
    """Number of records, and their bytes in the database."""

    records: int = 0
    bytes: int = 0
    floor: datetime | None = None
    """No remaining record of the same caller is older; None: unknown."""

    def without(self, gone: "AuditSize") -> "AuditSize":
        """The size after these records were removed."""
        return AuditSize(self.records - gone.records, self.bytes - gone.bytes, gone.floor)
