"""Keeps this replica's mark in the database: beats can be stored, so that silence from now on is the agents' own.

A mark is made while this process turns and what it holds can be stored. Time without any replica's fresh mark (none was up, all
stood still, the database was away) counts towards nobody's grace, and neither does a jump of the database's clock, which shows
in how it goes beside our monotonic one. After each of these everybody has a full grace again; a change of leader gives none.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from hub.api.liveness.coverage import FRESH, JUMP
from hub.ports import Store, Transaction
from hub.registry.liveness import coverage as hearing
from machinery.errors import MusterError
from machinery.runtime.clock import Clock
from machinery.runtime.rate_limit import until_tick

PULSE = timedelta(seconds=2)

log = structlog.get_logger(__name__)


class HeartbeatCoverage:
    """`replica`: its name, by which its mark is known. `storing`: whether what was received could be stored. `run` must run."""

    def __init__(self, store: Store, clock: Clock, replica: str, storing: Callable[[], bool]) -> None:
        self._store = store
        self._clock = clock
        self._replica = replica
        self._storing = storing
        self._began = True
        self._epoch: _Epoch | None = None
        self._marked = 0.0
        self._trouble = ""

    async def run(self) -> None:
        """Marks for ever."""
        while True:
            await self.mark()
            await asyncio.sleep(until_tick(PULSE))

    async def mark(self) -> None:
        """Marks now, unless beats cannot be stored."""
        if not self._storing():
            return
        try:
            asked = self._clock.monotonic()
            self._epoch = await self._store.run(self._mark, asked)
            self._marked = asked
        except MusterError as error:
            if error.message != self._trouble:
                log.warning("silences are not counted: beats cannot be stored", error=error.message)
            self._trouble = error.message
        else:
            self._began, self._trouble = False, ""

    def since(self, tx: Transaction) -> datetime | None:
        """From when on beats could be stored without a gap, in database time; None: they cannot be stored at the moment.

        Asked inside the transactions that judge, on threads of the store, several at once.
        """
        epoch = self._epoch
        is_ahead = epoch is not None and self._ago(tx.now) > epoch.latest + JUMP
        return None if is_ahead else hearing.since(tx)

    def _mark(self, tx: Transaction, asked: float) -> "_Epoch":
        """`asked`: our monotonic time before the transaction began."""
        epoch = _Epoch(earliest=self._ago(tx.now), latest=tx.now - timedelta(seconds=asked))
        was_away = asked - self._marked > FRESH.total_seconds()
        jumped = self._epoch is not None and not was_away and epoch.is_apart(self._epoch)
        if jumped:
            log.warning("silences are counted anew: the database's clock has jumped")
        hearing.mark(tx, self._replica, began=self._began or was_away, jumped=jumped)
        return epoch

    def _ago(self, now: datetime) -> datetime:
        return now - timedelta(seconds=self._clock.monotonic())


@dataclass(frozen=True, slots=True)
class _Epoch:
    """When our monotonic clock began, by the database's: between these two, as a transaction may wait for its turn."""

    earliest: datetime
    latest: datetime

    def is_apart(self, other: "_Epoch") -> bool:
        return self.earliest > other.latest + JUMP or self.latest < other.earliest - JUMP
