"""Writes this replica's mark. A fresh mark proves that beats can be stored, so that only agents can cause silence.

A replica writes marks while its process runs and its beats can be stored. Two things do not count towards a grace period.
First, time without a fresh mark of any replica: none was running, all were suspended, or the database was unavailable. Second,
a jump of the database's clock, which the replica finds by its monotonic clock. After each of these, all clusters have a full
grace period again. A change of leader has no such effect.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from hub.api.liveness import FRESH, JUMP
from hub.ports import Store, Transaction
from hub.registry.liveness import heartbeats
from machinery.errors import MusterError
from machinery.observability.logs import LogOnce
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import until_tick

PULSE = timedelta(seconds=2)

log = structlog.get_logger(__name__)


class HeartbeatCoverage:
    """Writes this replica's mark while `run` runs. `replica`: the mark's name. `storing`: whether beats can be stored."""

    def __init__(self, store: Store, clock: Clock, replica: str, storing: Callable[[], bool]) -> None:
        self._store = store
        self._clock = clock
        self._replica = replica
        self._storing = storing
        self._began = True
        self._offset: _ClockOffset | None = None
        self._marked = 0.0
        self._failure = LogOnce(log)

    async def run(self) -> None:
        """Writes marks until cancelled."""
        while True:
            await self.mark()
            await asyncio.sleep(until_tick(PULSE))

    async def mark(self) -> None:
        """Writes a mark, unless beats cannot be stored."""
        if not self._storing():
            return
        try:
            asked = self._clock.monotonic()
            self._offset = await self._store.run(self._mark, asked)
            self._marked = asked
        except MusterError as error:
            self._failure.warning("clusters are not declared silent: heartbeats cannot be stored", error.message)
        else:
            self._began = False
            self._failure.reset()

    def since(self, tx: Transaction) -> datetime | None:
        """Returns the time since which beats can be stored without a gap, in database time; None if they cannot be stored now.

        Called inside the transactions that decide on silence, on several threads of the store concurrently.
        """
        offset = self._offset
        is_ahead = offset is not None and self._ago(tx.now) > offset.latest + JUMP
        return None if is_ahead else heartbeats.covered_since(tx)

    def _mark(self, tx: Transaction, asked: float) -> "_ClockOffset":
        """Write the mark. Returns the offset of the clocks. `asked`: the monotonic time before the transaction began."""
        offset = _ClockOffset(earliest=self._ago(tx.now), latest=tx.now - timedelta(seconds=asked))
        was_away = asked - self._marked > FRESH.total_seconds()
        jumped = self._offset is not None and not was_away and offset.is_apart(self._offset)
        if jumped:
            log.warning("silence is measured from now on: the database's clock has jumped")
        heartbeats.mark_coverage(tx, self._replica, began=self._began or was_away, jumped=jumped)
        return offset

    def _ago(self, now: datetime) -> datetime:
        return now - timedelta(seconds=self._clock.monotonic())


@dataclass(frozen=True, slots=True)
class _ClockOffset:
    """Bounds of the database time at which the monotonic clock was 0. The exact time is unknown, as a transaction may wait."""

    earliest: datetime
    latest: datetime

    def is_apart(self, other: "_ClockOffset") -> bool:
        return self.earliest > other.latest + JUMP or self.latest < other.earliest - JUMP
