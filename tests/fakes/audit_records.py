"""Audit records, and a place that keeps them and can be made slow or full."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hub.api.auditrecords import AuditEntry, AuditLevel, AuditRecord, Numbering, ObjectReference, ResponseStatus, Stage, User
from hub.audit.trail import AuditSink
from machinery.errors import UnavailableError

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def record(
    number: int = 0, *, at: datetime | None = None, user: str = "ann", verb: str = "create", **reference: str
) -> AuditRecord:
    """A record like any other; `number` makes it another one, a second later."""
    return AuditRecord(
        level=AuditLevel.METADATA,
        audit_id=f"id-{number}",
        stage=Stage.RESPONSE_COMPLETE,
        verb=verb,
        user=User(user),
        object_ref=ObjectReference(**{"resource": "managedclusters", "name": "edge", **reference}),
        response_status=ResponseStatus(201),
        at=at or EPOCH + number * timedelta(seconds=1),
    )


def entries(replica: str, *records: AuditRecord) -> list[AuditEntry]:
    return [*map(Numbering(replica).entry, records)]


class MemorySink(AuditSink):
    """`gate` is closed to make it slow, `failing` to make it fail.

    `broken`: how often it fails in a way that nobody foresaw. `refused`: a user of whom it never takes a record.
    """

    name = "memory"

    def __init__(self) -> None:
        self.numbering = Numbering("memory")
        self.entries: list[AuditEntry] = []
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing = 0
        self.broken = 0
        self.refused = ""
        self.asked = 0

    async def open(self) -> None:
        """It is always there."""

    async def write(self, entries: Sequence[AuditEntry]) -> None:
        self.asked += 1
        await self.gate.wait()
        if self.failing:
            self.failing -= 1
            raise UnavailableError("no room on the disk")
        if self.broken:
            self.broken -= 1
            raise RuntimeError("nobody foresaw this")
        if any(self.refused and entry.fields.user == self.refused for entry in entries):
            raise ValueError("this cannot be kept")
        self.batches.append(len(entries))
        self.entries += entries
