"""Buffer of received beats, and the loop that flushes them to the database.

The newest beat of a cluster replaces the one before; its age is measured by the monotonic clock from its receipt. All beats go
to the database in one statement, at most once per window. After a quiet window the loop waits for a tenth of the window,
because agents beat in step. No beat is acknowledged before its commit. While the database is unavailable, the newest beat of
each cluster is kept.

A beat that ends a silence is news: it wakes the loop and commits in its own transaction, with the change of availability. If
that fails, the beat is stored with the others, and the cluster's next beat tries again, because one cluster must not block the
beats of others. When a fleet returns at once, some silences end, then all other beats are stored, then the next silences end.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import structlog

from hub.api.auditrecords import AuditEntry
from hub.api.liveness import Beat
from hub.ports import Store
from hub.registry.liveness import heartbeats
from machinery.errors import ConflictError, DeadlineError, MusterError, StaleEpochError, UnavailableError
from machinery.identity import ClusterName
from machinery.observability.log_once import LogOnce
from machinery.observability.metrics import COUNTS, Distribution
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import until_tick

ACTOR = "system:hub:heartbeat"
GATHERING = 0.1
"""Share of the window."""
TOGETHER = 100
"""Silences that end before other beats are stored again. Each needs a transaction, and agents wait for five seconds."""
PASSING = (UnavailableError, DeadlineError, ConflictError)
"""Errors that a later attempt may not meet."""

log = structlog.get_logger(__name__)


class BeatSink(Protocol):
    """The session of a beat. `epoch`: its owner epoch; 0: the agent has none."""

    epoch: int = 0

    def acknowledge(self, sequence: int, *, ended_silence: bool) -> None:
        """The beat is stored. Returns at once, never raises; the session may have ended.

        `ended_silence`: the beat was held with `ends_silence` and has ended a silence.
        """

    def refuse(self, error: StaleEpochError) -> None:
        """The beat will never be stored. Returns at once, never raises; the session may have ended."""


@dataclass(slots=True)
class PendingBeat:
    """A received beat. `received`: seconds of the monotonic clock."""

    received: float
    available: bool | None
    sink: BeatSink
    sequence: int
    ends_silence: bool
    entries: tuple[AuditEntry, ...] = ()
    """Audit records to be stored with it: its own, and those of beats that it replaced."""


@dataclass(slots=True)
class BeatCounts:
    """Counts since the start."""

    stored: int = 0
    """Stored beats; of several beats of a cluster in one window only the last counts."""
    revived: int = 0
    """Stored beats that ended a silence."""
    refused: int = 0
    """Beats of agents that report to another hub now."""
    failures: int = 0
    """Attempts that the database refused; no beat is lost by them."""
    lag: Distribution = field(default_factory=Distribution)
    """Seconds from the receipt of a beat to its commit."""
    flush: Distribution = field(default_factory=Distribution)
    """Seconds per flush."""
    rows: Distribution = field(default_factory=lambda: Distribution(COUNTS))
    """Beats per flush."""


class BeatBuffer:
    """Beats of all sessions of this process. `run` must be running."""

    def __init__(self, store: Store, clock: Clock, window: timedelta) -> None:
        self._store = store
        self._clock = clock
        self._window = window
        self._held: dict[ClusterName, PendingBeat] = {}
        self._filled = asyncio.Event()
        self._urgent = asyncio.Event()
        self._failure = LogOnce(log)
        self._in_hand = 0
        self._stuck: set[ClusterName] = set()
        self.counts = BeatCounts()

    @property
    def storing(self) -> bool:
        """Whether beats can be stored: False from a failure until beats are stored again or none waits."""
        return not self._failure.text or not (self._held or self._in_hand)

    def __len__(self) -> int:
        """Number of beats that are not stored yet."""
        return len(self._held)

    def hold(
        self,
        cluster: ClusterName,
        sequence: int,
        sink: BeatSink,
        *,
        available: bool | None,
        ends_silence: bool = False,
        entry: AuditEntry | None = None,
    ) -> PendingBeat:
        """Takes a beat received now. A beat with an outdated epoch is refused and does not replace its successor's."""
        held = PendingBeat(self._clock.monotonic(), available, sink, sequence, ends_silence, () if entry is None else (entry,))
        known = self._held.get(cluster)
        if known is not None and 0 < sink.epoch < known.sink.epoch:
            sink.refuse(heartbeats.outdated(known.sink.epoch))
            return held
        if known is not None:
            held.entries = (*known.entries, *held.entries)
        self._held[cluster] = held
        self._filled.set()
        if ends_silence:
            self._urgent.set()
        return held

    def hold_again(self, cluster: ClusterName, held: PendingBeat) -> None:
        """Marks the newest beat as one that ends a silence, because the cluster was set to Unknown when this beat arrived."""
        newest = self._held.setdefault(cluster, held)
        if newest.received < held.received:
            held.entries = (*newest.entries, *held.entries)
            newest = self._held[cluster] = held
        newest.ends_silence = True
        self._filled.set()
        self._urgent.set()

    def drop(self, cluster: ClusterName, sink: BeatSink) -> None:
        """Drops the waiting beat of a session that has ended."""
        known = self._held.get(cluster)
        if known is not None and known.sink is sink:
            del self._held[cluster]

    async def run(self) -> None:
        """Flushes until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._filled.wait()
            await self._is_urgent_before(loop.time() + self._window.total_seconds() * GATHERING)
            await self.flush()
            # Until the window is over only ends of silences are stored; a transaction that has begun is finished.
            end = loop.time() + until_tick(self._window)
            while await self._is_urgent_before(end):
                await self._revive()

    async def _is_urgent_before(self, end: float) -> bool:
        if asyncio.get_running_loop().time() >= end:
            return False  # when many clusters return together there is always one more, and other beats have waited long enough
        try:
            async with asyncio.timeout_at(end):
                await self._urgent.wait()
        except TimeoutError:
            return False
        return True

    async def flush(self) -> None:
        """Stores and acknowledges the waiting beats. If the database is unavailable, they stay in the buffer."""
        tried = await self._revive()
        # New beats that end a silence wait for their own transaction: stored with the others they would not end it.
        waiting = {cluster: held for cluster, held in self._held.items() if held.ends_silence and cluster not in tried}
        taken = {cluster: held for cluster, held in self._held.items() if cluster not in waiting}
        self._held = waiting
        if not waiting:
            self._filled.clear()
        if not taken:
            return
        began = self._clock.monotonic()
        self._in_hand += len(taken)
        try:
            refused = await self._store.run(heartbeats.flush, self._beats(taken.items()), _entries(taken.values()))
        except MusterError as error:
            self._keep(taken, error)
            return
        finally:
            self._in_hand -= len(taken)
        self._stored()
        for cluster, known in refused.items():
            taken.pop(cluster).sink.refuse(heartbeats.outdated(known))
        self._count(taken.values(), len(refused), began)
        for held in taken.values():
            held.sink.acknowledge(held.sequence, ended_silence=False)

    def _count(self, stored: Collection[PendingBeat], refused: int, began: float) -> None:
        """Counts a flush that has just ended. `began`: seconds of the monotonic clock."""
        now, counts = self._clock.monotonic(), self.counts
        counts.flush.observe(now - began)
        counts.rows.observe(len(stored))
        counts.stored += len(stored)
        counts.refused += refused
        observe = counts.lag.observe
        for held in stored:
            observe(now - held.received)

    async def _revive(self) -> Collection[ClusterName]:
        """Stores up to `TOGETHER` beats that end a silence. Returns their clusters, stored or not."""
        self._urgent.clear()
        names = [cluster for cluster, held in self._held.items() if held.ends_silence]
        urgent = {cluster: self._held.pop(cluster) for cluster in names[:TOGETHER]}
        if not urgent:
            return ()
        self._in_hand += len(urgent)
        try:
            done = await asyncio.gather(*(self._revive_one(cluster, held) for cluster, held in urgent.items()))
        finally:
            self._in_hand -= len(urgent)
        if all(done):
            self._stored()
        if len(names) > TOGETHER and any(done):  # else the database is unavailable, and the next window tries again
            self._urgent.set()
        return urgent.keys()

    async def _revive_one(self, cluster: ClusterName, held: PendingBeat) -> bool:
        """Returns False if the beat was put back."""
        (beat,) = self._beats([(cluster, held)])
        try:
            is_over = await self._store.run(heartbeats.revive, beat, ACTOR, held.entries)
        except StaleEpochError as error:
            self.counts.refused += 1
            held.sink.refuse(error)
            return True
        except Exception as error:  # noqa: BLE001 - one cluster's trouble must not end the beats of all
            self._hold_again(cluster, held, error)
            return False
        self._stuck.discard(cluster)
        self.counts.stored += 1
        self.counts.revived += is_over
        self.counts.lag.observe(self._clock.monotonic() - held.received)
        held.sink.acknowledge(held.sequence, ended_silence=is_over)
        return True

    def _hold_again(self, cluster: ClusterName, held: PendingBeat, error: Exception) -> None:
        """Puts the beat back for the next flush. A permanent error is logged once, until the cluster's silence has ended."""
        self.counts.failures += 1
        self._put_back(cluster, held)
        self._filled.set()
        if cluster not in self._stuck and not isinstance(error, PASSING):
            self._stuck.add(cluster)
            expected = isinstance(error, MusterError)
            log.error("a silence cannot be ended", cluster=cluster, error=str(error), exc_info=None if expected else error)

    def _beats(self, held: Iterable[tuple[ClusterName, PendingBeat]]) -> Sequence[Beat]:
        now = self._clock.monotonic()
        return [Beat(cluster, timedelta(seconds=now - one.received), one.available, one.sink.epoch) for cluster, one in held]

    def _keep(self, taken: dict[ClusterName, PendingBeat], error: MusterError) -> None:
        """Puts beats back into the buffer, except where a newer one has arrived."""
        self._failure.warning("heartbeats cannot be stored and are not acknowledged", error.message, held=len(taken))
        self.counts.failures += 1
        for cluster, held in taken.items():
            self._put_back(cluster, held)
        self._filled.set()

    def _put_back(self, cluster: ClusterName, held: PendingBeat) -> None:
        newer = self._held.setdefault(cluster, held)
        if newer is not held and held.entries:
            newer.entries = (*held.entries, *newer.entries)

    def _stored(self) -> None:
        if self._failure.reset():
            log.info("heartbeats are stored again")


def _entries(held: Iterable[PendingBeat]) -> Sequence[AuditEntry]:
    return [entry for one in held for entry in one.entries]
