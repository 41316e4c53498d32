"""Queue of audit records for one sink, which delivers the records in batches.

`offer` never waits or fails. If the queue is full, further records are dropped, and one record contains their number. Each sink
has its own queue, so that a slow sink does not delay others. If the process is killed, queued records are lost. Records of
changes are not lost, because the transaction of the change writes them to the database.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import structlog

from hub.api.auditrecords import AuditEntry, AuditLevel, AuditRecord, Dropped, Numbering, Stage
from machinery.errors import MusterError
from machinery.observability.logs import LogOnce
from machinery.product import NAME
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import wait_at_most

CAPACITY = 10_000
BATCH = 400
WINDOW = timedelta(milliseconds=250)
LEFT_OUT = f"{NAME}/left-out"

log = structlog.get_logger(__name__)


class AuditSink(Protocol):
    """A place that stores records: the database or a file."""

    name: str
    numbering: Numbering

    async def open(self) -> None:
        """Prepares the sink. Raises MusterError if it cannot store records."""

    async def write(self, entries: Sequence[AuditEntry]) -> None:
        """Stores the entries durably before it returns. After a failure the caller may write the same entries again.

        Raises MusterError for failures that the caller can retry later.
        """


@dataclass(slots=True)
class _Gap:
    """The number of consecutive records that did not fit into the queue, and the times of the first and the last."""

    count: int
    first: datetime
    last: datetime


class Trail:
    """The queue of a sink. Call `sink.open` first, `run` for the lifetime of the hub, and `finish` at the end."""

    def __init__(
        self, sink: AuditSink, clock: Clock, *, capacity: int = CAPACITY, window: timedelta = WINDOW, batch: int = BATCH
    ) -> None:
        self.sink = sink
        self._clock = clock
        self._capacity = capacity
        self._window = window.total_seconds()
        self._batch = batch
        self._queue: deque[AuditRecord | _Gap] = deque()
        self._some = asyncio.Event()
        self._many = asyncio.Event()
        """Set when a batch is full or `flush` is called."""
        self._empty = asyncio.Event()
        self._empty.set()
        self._finishing = False
        self._hurried = 0
        self._in_hand = 0
        self._failure = LogOnce(log)
        self._pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=5))
        self._written = self._dropped = self._late = self._failures = 0

    def offer(self, record: AuditRecord) -> None:
        """Takes the record, or counts it as dropped. Never waits, never raises."""
        if self._finishing and self._empty.is_set():
            self._late += 1
            return
        if len(self._queue) >= self._capacity:
            self._drop()
            return
        self._queue.append(record)
        self._empty.clear()
        self._some.set()
        if len(self._queue) >= self._batch:
            self._many.set()

    def _drop(self) -> None:
        now, last = self._clock.now(), self._queue[-1]
        self._dropped += 1
        if isinstance(last, _Gap):
            last.count, last.last = last.count + 1, now
            return
        log.error("audit queue is full: records are dropped", sink=self.sink.name, capacity=self._capacity)
        self._queue.append(_Gap(1, now, now))

    async def run(self) -> None:
        while True:
            await self._some.wait()
            if len(self._queue) < self._batch and not self._hurried:
                self._many.clear()
                await wait_at_most(self._many, self._window)
            await self._deliver(self._take())
            self._in_hand = 0
            if not self._queue:
                self._some.clear()
                self._empty.set()

    def _take(self) -> list[AuditEntry]:
        taken = [self._queue.popleft() for _ in range(min(len(self._queue), self._batch))]
        self._in_hand = len(taken)
        return [self._entry(_record_of(each) if isinstance(each, _Gap) else each) for each in taken]

    def _entry(self, record: AuditRecord) -> AuditEntry:
        """Encodes a record. Replaces a record that cannot be encoded, so that the other records are not lost."""
        try:
            return self.sink.numbering.entry(record)
        except Exception:
            log.exception("an audit record cannot be encoded", sink=self.sink.name, verb=record.verb)
            return self.sink.numbering.entry(left_out(record.stage, record.at))

    async def _deliver(self, entries: Sequence[AuditEntry]) -> None:
        while entries:
            try:
                await self.sink.write(entries)
            except MusterError as error:
                await self._pause(error.message)
            except Exception as error:  # noqa: BLE001 - one record may be the reason
                await self._pause(f"{type(error).__name__}: {error}", error)
                entries = await self._one_by_one(entries)
            else:
                self._kept(entries)
                return

    def _kept(self, entries: Sequence[AuditEntry]) -> None:
        self._written += len(entries)
        self._pauses.reset()
        if self._failure.reset():
            log.info("audit records are written again", sink=self.sink.name)

    async def _one_by_one(self, entries: Sequence[AuditEntry]) -> Sequence[AuditEntry]:
        """Writes entries one by one after a failure that one entry may have caused. Returns the entries that remain."""
        while entries:
            try:
                if not await self._is_taken(entries[0]):
                    if not await self._is_taken(self._entry(left_out(Stage.RESPONSE_COMPLETE, entries[0].at))):
                        return entries  # the record is not the cause
                    log.error("an audit record is left out: the sink rejects it", sink=self.sink.name, at=entries[0].at)
            except MusterError:  # not caused by the record: `_deliver` handles it
                return entries
            entries = entries[1:]
            self._in_hand = len(entries)
        return entries

    async def _is_taken(self, entry: AuditEntry) -> bool:
        """Writes one entry. Returns False if the sink rejects the entry. Raises MusterError if the sink cannot write now."""
        try:
            await self.sink.write((entry,))
        except MusterError:
            raise
        except Exception as error:  # noqa: BLE001 - as for the batch
            log.info("audit sink rejected a record", sink=self.sink.name, error=type(error).__name__)
            return False
        self._kept((entry,))
        return True

    async def _pause(self, why: str, defect: Exception | None = None) -> None:
        """Waits before a retry. Logs each failure once; with `defect`, an unexpected failure, it also logs the stack trace."""
        self._failures += 1
        pause = self._pauses.next().total_seconds()
        report = self._failure.warning if defect is None else self._failure.error
        report("audit records cannot be written now", why, sink=self.sink.name, waiting=self._waiting, exc_info=defect)
        await asyncio.sleep(pause)

    @property
    def _waiting(self) -> int:
        return len(self._queue) + self._in_hand

    async def flush(self) -> None:
        """Returns when all taken records are stored. The caller sets the time-out."""
        self._hurried += 1
        self._many.set()
        try:
            await self._empty.wait()
        finally:
            self._hurried -= 1

    async def finish(self) -> None:
        """Flushes for the last time. Records that are offered after the queue is empty are only counted."""
        self._finishing = True
        try:
            await self.flush()
        finally:
            left = self._waiting
            if left:
                log.critical("audit records are lost: they could not be written in time", records=left, sink=self.sink.name)
            else:
                log.info("audit records flushed", dropped=self._dropped, sink=self.sink.name)

    def snapshot(self) -> dict[str, Any]:
        return {
            "sink": self.sink.name,
            "waiting": self._waiting,
            "capacity": self._capacity,
            "written": self._written,
            "dropped": self._dropped,
            "late": self._late,
            "failures": self._failures,
        }


def left_out(stage: Stage, at: datetime) -> AuditRecord:
    return AuditRecord(level=AuditLevel.METADATA, stage=stage, at=at, annotations={LEFT_OUT: "it could not be stored"})


def _record_of(gap: _Gap) -> AuditRecord:
    return AuditRecord(
        level=AuditLevel.METADATA,
        stage=Stage.DROPPED,
        dropped=Dropped(gap.count, gap.first, gap.last),
        received=gap.first,
        at=gap.last,
    )
