"""The way of records to one place where they are kept: taken at once, linked, and delivered in batches.

Taking never waits and never fails. What finds no room is counted, and the count becomes a link of the chain, at the place where
records are missing: a drop is told, it does not read as tampering. Each place has a trail, with a queue and a chain of its own,
so that a slow one costs the others nothing. What a kill of the process loses is what the queue held: a window's worth.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import structlog

from hub.domain.audit import Dropped, Level, Record, Stage
from hub.domain.chain import Head, Link, linked
from machinery.backoff import Backoff
from machinery.clock import Clock
from machinery.errors import AlreadyExistsError, MusterError
from machinery.product import NAME

CAPACITY = 10_000
BATCH = 400
WINDOW = timedelta(milliseconds=250)
LEFT_OUT = f"{NAME}/left-out"

log = structlog.get_logger(__name__)


class Sink(Protocol):
    """Where links are kept: the database, a file."""

    @property
    def name(self) -> str: ...

    @property
    def replica(self) -> str:
        """The name of the chain that it keeps now."""

    async def open(self) -> Head:
        """The last link there is. Raises MusterError with what is wrong: nothing can be kept here."""

    async def write(self, links: Sequence[Link]) -> None:
        """Keeps the links; they are durable when it returns. The same links may be sent again after a failure.

        Raises AlreadyExistsError when another process writes the chain, other MusterErrors to be asked again later.
        """

    async def renamed(self) -> Head:
        """Begins another chain, because others have taken this one."""


@dataclass(slots=True)
class _Gap:
    """Stands in the queue where records found no room."""

    count: int
    first: datetime
    last: datetime


class Trail:
    """`open`, then `run` for as long as the hub lives, and `finish` at its end."""

    def __init__(
        self,
        sink: Sink,
        clock: Clock,
        *,
        capacity: int = CAPACITY,
        window: timedelta = WINDOW,
        batch: int = BATCH,
    ) -> None:
        self._sink = sink
        self._clock = clock
        self._capacity = capacity
        self._window = window.total_seconds()
        self._batch = batch
        self._queue: deque[Record | _Gap] = deque()
        self._head = Head()
        self._some = asyncio.Event()
        self._many = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._finishing = False
        self._hurried = 0
        self._in_hand = 0
        self._trouble = ""
        self._pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=5))
        self._written = self._dropped = self._late = self._failures = 0

    async def open(self) -> None:
        """Finds where the chain ends. Raises MusterError: records cannot be kept there, so the hub must not begin."""
        self._head = await self._sink.open()

    def offer(self, record: Record) -> None:
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
        log.error("audit records find no room and are dropped", sink=self._sink.name, capacity=self._capacity)
        self._queue.append(_Gap(1, now, now))

    async def run(self) -> None:
        """Delivers for ever."""
        while True:
            await self._some.wait()
            if len(self._queue) < self._batch and not self._hurried:
                await self._gathered()
            links = self._take()
            await self._deliver(links)
            self._in_hand = 0
            if not self._queue:
                self._some.clear()
                self._empty.set()

    async def _gathered(self) -> None:
        """Returns after the window, or when a batch is full or nothing more will come."""
        self._many.clear()
        try:
            async with asyncio.timeout(self._window):
                await self._many.wait()
        except TimeoutError:
            return

    def _take(self) -> list[Link]:
        links: list[Link] = []
        while self._queue and len(links) < self._batch:
            entry = self._queue.popleft()
            record = _record_of(entry) if isinstance(entry, _Gap) else entry
            links.append(self._linked(links[-1].head if links else self._head, record))
        self._in_hand = len(links)
        return links

    def _linked(self, head: Head, record: Record) -> Link:
        """Whatever stands in the record: one that cannot be written down must not cost the others."""
        try:
            return linked(self._sink.replica, head, record)
        except Exception:
            log.exception("an audit record cannot be written down", sink=self._sink.name, verb=record.verb)
            return linked(self._sink.replica, head, left_out(record.stage, record.at))

    async def _deliver(self, links: Sequence[Link]) -> None:
        while links:
            try:
                await self._sink.write(links)
            except AlreadyExistsError as error:
                log.critical("another process writes this hub's audit chain", sink=self._sink.name, error=error.message)
                self._head = await self._sink.renamed()
                links = self._moved(links)
            except MusterError as error:
                await self._pause(error.message)
            except Exception as error:  # noqa: BLE001 - one record may be the reason
                await self._pause(f"{type(error).__name__}: {error}", error)
                links = await self._one_by_one(links)
            else:
                self._kept(links)
                return

    def _kept(self, links: Sequence[Link]) -> None:
        self._head = links[-1].head
        self._written += len(links)
        self._pauses.reset()
        if self._trouble:
            log.info("audit records are written again", sink=self._sink.name)
            self._trouble = ""

    def _moved(self, links: Sequence[Link]) -> Sequence[Link]:
        """The same records as the next links of the chain that is written now."""
        moved: list[Link] = []
        for link in links:
            moved.append(link.moved(self._sink.replica, moved[-1].head if moved else self._head))
        return moved

    async def _one_by_one(self, links: Sequence[Link]) -> Sequence[Link]:
        """After a failure that nobody foresaw, which one record may be the reason of. What is left to be delivered."""
        while links:
            try:
                if not await self._is_taken(links[0]):
                    stand_in = linked(self._sink.replica, self._head, left_out(Stage.RESPONSE_COMPLETE, links[0].at))
                    if not await self._is_taken(stand_in):  # then it is not the record
                        return links
                    log.error("an audit record is left out: it cannot be kept", sink=self._sink.name, hash=links[0].hash)
            except MusterError:  # no word about the record: `_deliver` meets it again
                return links
            links = self._moved(links[1:])
            self._in_hand = len(links)
        return links

    async def _is_taken(self, link: Link) -> bool:
        """Writes one link. Raises MusterError when nothing can be written now."""
        try:
            await self._sink.write((link,))
        except MusterError:
            raise
        except Exception as error:  # noqa: BLE001 - the one that was told of the batch
            log.info("the place refuses an audit record", sink=self._sink.name, error=type(error).__name__)
            return False
        self._kept((link,))
        return True

    async def _pause(self, why: str, defect: Exception | None = None) -> None:
        """Each trouble is told once; `defect`: what nobody foresaw, with its stack."""
        self._failures += 1
        pause = self._pauses.next().total_seconds()
        if why != self._trouble:
            tell, how = (log.warning if defect is None else log.error), {"sink": self._sink.name, "error": why}
            tell("audit records cannot be written now", **how, waiting=self._waiting, exc_info=defect)
        self._trouble = why
        await asyncio.sleep(pause)

    @property
    def _waiting(self) -> int:
        return len(self._queue) + self._in_hand

    async def flush(self) -> None:
        """Returns when all that was taken is kept. The caller bounds it."""
        self._hurried += 1
        self._many.set()
        try:
            await self._empty.wait()
        finally:
            self._hurried -= 1

    async def finish(self) -> None:
        """`flush`, for the last time: what is offered later is only counted."""
        self._finishing = True
        try:
            await self.flush()
        finally:
            left = self._waiting
            told = {"sink": self._sink.name, "replica": self._sink.replica, "sequence": self._head.sequence}
            if left:
                log.critical("audit records are lost: they could not be written in time", records=left, **told)
            else:
                log.info("audit records flushed", hash=self._head.hash, dropped=self._dropped, **told)

    def snapshot(self) -> dict[str, Any]:
        """Numbers for who looks into a running hub."""
        return {
            "sink": self._sink.name,
            "replica": self._sink.replica,
            "sequence": self._head.sequence,
            "waiting": self._waiting,
            "capacity": self._capacity,
            "written": self._written,
            "dropped": self._dropped,
            "late": self._late,
            "failures": self._failures,
        }


def left_out(stage: Stage, at: datetime) -> Record:
    """Stands in the chain where a record would be that no place takes."""
    return Record(level=Level.METADATA, stage=stage, at=at, annotations={LEFT_OUT: "it could not be kept"})


def _record_of(gap: _Gap) -> Record:
    return Record(
        level=Level.METADATA,
        stage=Stage.DROPPED,
        dropped=Dropped(gap.count, gap.first, gap.last),
        received=gap.first,
        at=gap.last,
    )
