"""Audit records, chains of them, and a place that keeps them and can be made slow, full or somebody else's."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from hub.audit.trail import Sink
from hub.domain.audit import Level, ObjectReference, Record, ResponseStatus, Stage, User
from hub.domain.chain import Head, Link, linked
from machinery.errors import AlreadyExistsError, UnavailableError

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def record(number: int = 0, *, at: datetime | None = None, user: str = "ann", verb: str = "create", **reference: str) -> Record:
    """A record like any other; `number` makes it another one, a second later."""
    return Record(
        level=Level.METADATA,
        audit_id=f"id-{number}",
        stage=Stage.RESPONSE_COMPLETE,
        verb=verb,
        user=User(user),
        object_ref=ObjectReference(**{"resource": "managedclusters", "name": "edge", **reference}),
        response_status=ResponseStatus(201),
        at=at or EPOCH + number * timedelta(seconds=1),
    )


def chain(replica: str, *records: Record, after: Head | None = None) -> list[Link]:
    links: list[Link] = []
    for each in records:
        links.append(linked(replica, links[-1].head if links else after or Head(), each))
    return links


class MemorySink(Sink):
    """`gate` is closed to make it slow, `failing` to make it fail; a `thief` has taken the chain.

    `broken`: how often it fails in a way that nobody foresaw. `refused`: a user of whom it never takes a record.
    """

    name = "memory"

    def __init__(self) -> None:
        self._replica = "memory"
        self.links: list[Link] = []
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing = 0
        self.broken = 0
        self.refused = ""
        self.asked = 0
        self.thief = False

    @property
    def replica(self) -> str:
        return self._replica

    async def open(self) -> Head:
        return self.links[-1].head if self.links else Head()

    async def write(self, links: Sequence[Link]) -> None:
        self.asked += 1
        await self.gate.wait()
        if self.thief:
            raise AlreadyExistsError("another process writes the chain")
        if self.failing:
            self.failing -= 1
            raise UnavailableError("no room on the disk")
        if self.broken:
            self.broken -= 1
            raise RuntimeError("nobody foresaw this")
        if any(self.refused and link.fields.user == self.refused for link in links):
            raise ValueError("this cannot be kept")
        self.batches.append(len(links))
        self.links += links

    async def renamed(self) -> Head:
        self.thief = False
        self._replica = str(uuid4())
        return Head()
