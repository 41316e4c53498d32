"""Buffer of received beats, and the loop that flushes them to the database.

The newest beat of a cluster replaces the one before. The age of a beat is the time since its receipt, by the monotonic clock.
One statement stores all beats, at most once per window. Before the flush, the loop waits for a tenth of the window, because
many agents send their beats at the same time. No beat is acknowledged before its commit. While the database is unavailable, the
newest beat of each cluster is kept.

A beat that ends a silence does not wait: it wakes the loop and commits in its own transaction, with the change of availability.
If this transaction fails, the beat is stored with the others, and the cluster's next beat tries again. So one cluster does not
block the beats of others. If a whole fleet returns, the loop ends some silences, then stores all other beats, then ends the
next silences.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import structlog

from hub.api.auditrecords import AuditEntry
from hub.api.liveness import Beat
from hub.ports import Store, Transaction
from hub.registry.liveness import heartbeats
from machinery.errors import ConflictError, DeadlineError, MusterError, StaleEpochError, UnavailableError
from machinery.identity import ClusterName
from machinery.observability.logs import LogOnce
from machinery.observability.metrics import COUNTS, Distribution
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import until_tick, wait_at_most

ACTOR = "system:hub:heartbeat"
GATHERING = 0.1
"""Share of the window for which the loop waits for more beats."""
TOGETHER = 100
"""Largest number of silences that end before other beats are stored. Each needs a transaction, and agents wait only five
seconds."""
PASSING = (UnavailableError, DeadlineError, ConflictError)
"""Temporary errors: a later attempt may succeed."""

log = structlog.get_logger(__name__)


class BeatSink(Protocol):
    """The session that received a beat. `epoch`: the epoch in the agent's Hello; 0: the agent has no epoch."""

    epoch: int = 0

    def acknowledge(self, sequence: int, *, ended_silence: bool) -> None:
        """Acknowledges a stored beat. `ended_silence`: it has ended a silence. Never raises, even if the session has ended."""

    def refuse(self, error: StaleEpochError) -> None:
        """Informs the session that the hub will never store its beat. Never raises, even if the session has ended."""


@dataclass(slots=True)
class PendingBeat:
    """A received beat. `received`: seconds of the monotonic clock. `available`: the verdict; None: unknown."""

    cluster: ClusterName
    received: float
    available: bool | None
    sink: BeatSink
    sequence: int
    ends_silence: bool
    entries: tuple[AuditEntry, ...] = ()
    """Audit records to be stored with this beat: its own, and those of the beats that it replaced."""

    def stored_at(self, now: float) -> Beat:
        """Return the beat with its age. `now`: seconds of the monotonic clock."""
        return Beat(self.cluster, timedelta(seconds=now - self.received), self.available, self.sink.epoch)


@dataclass(slots=True)
class BeatCounts:
    """Counts of beats and flushes since the start of the process."""

    stored: int = 0
    """Stored beats. Only the last beat of a cluster in a window is stored and counted."""
    revived: int = 0
    """Stored beats that ended a silence."""
    refused: int = 0
    """Beats that were refused because their epoch is outdated: their agents report to another hub now."""
    failures: int = 0
    """Failed attempts to store beats. The beats stay in the buffer."""
    lag: Distribution = field(default_factory=Distribution)
    """Seconds from the receipt of a beat to its commit."""
    flush: Distribution = field(default_factory=Distribution)
    """Seconds per flush."""
    rows: Distribution = field(default_factory=lambda: Distribution(COUNTS))
    """Beats per flush."""


class BeatBuffer:
    """Beats of all sessions of this process. `run` must be running. `window`: the flush window."""

    def __init__(self, store: Store, clock: Clock, window: timedelta) -> None:
        self._store = store
        self._clock = clock
        self._window = window
        self._held: dict[ClusterName, PendingBeat] = {}
        self._filled = asyncio.Event()
        self._urgent = asyncio.Event()
        self._failure = LogOnce(log)
        self._in_flight = 0
        self._logged: set[ClusterName] = set()
        """Clusters with a permanent error that was already logged."""
        self.counts = BeatCounts()

    @property
    def storing(self) -> bool:
        """Whether beats can be stored: False from a failure until beats are stored again or none waits."""
        return not self._failure.text or not (self._held or self._in_flight)

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
        """Buffers a beat received now, and returns the beat. `available`: the verdict; None: unknown.

        `ends_silence`: the cluster was silent until now, so the beat is stored without waiting for the flush window.
        A beat with an epoch lower than that of the waiting beat is refused.
        """
        entries = () if entry is None else (entry,)
        beat = PendingBeat(cluster, self._clock.monotonic(), available, sink, sequence, ends_silence, entries)
        known = self._held.get(cluster)
        if known is not None:
            if 0 < sink.epoch < known.sink.epoch:
                sink.refuse(heartbeats.stale_epoch_error(known.sink.epoch))
                return beat
            beat.entries = (*known.entries, *entries)
        self._held[cluster] = beat
        self._filled.set()
        if ends_silence:
            self._urgent.set()
        return beat

    def hold_again(self, beat: PendingBeat) -> None:
        """Buffers `beat` again, unless a newer beat waits. Marks the waiting beat as one that ends a silence.

        A session calls this if its cluster became Unknown although `beat` had arrived. The loop then ends the silence.
        """
        newest = self._held.setdefault(beat.cluster, beat)
        if newest.received < beat.received:
            beat.entries = (*newest.entries, *beat.entries)
            newest = self._held[beat.cluster] = beat
        newest.ends_silence = True
        self._filled.set()
        self._urgent.set()

    def drop(self, cluster: ClusterName, sink: BeatSink) -> None:
        """Drops the cluster's waiting beat if the session `sink` received it. Called when the agent of this session leaves."""
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
            # Until the window is over, only beats that end a silence are stored. A transaction that has begun is finished.
            end = loop.time() + until_tick(self._window)
            while await self._is_urgent_before(end):
                await self._revive()

    async def _is_urgent_before(self, end: float) -> bool:
        # False after `end`, even for an urgent beat: if many clusters return together, other beats would wait too long
        left = end - asyncio.get_running_loop().time()
        return left > 0 and await wait_at_most(self._urgent, left)

    async def flush(self) -> None:
        """Stores and acknowledges the waiting beats. If the database is unavailable, they stay in the buffer."""
        tried = await self._revive()
        # New beats that end a silence wait for their own transaction: stored with the others, they would not end the silence.
        taken = {cluster: beat for cluster, beat in self._held.items() if not beat.ends_silence or cluster in tried}
        self._held = {cluster: beat for cluster, beat in self._held.items() if cluster not in taken}
        if not self._held:
            self._filled.clear()
        if not taken:
            return
        began, counts = self._clock.monotonic(), self.counts
        beats = [beat.stored_at(began) for beat in taken.values()]
        entries = [entry for beat in taken.values() for entry in beat.entries]

        def store_beats(tx: Transaction) -> Mapping[ClusterName, int]:
            if entries:
                tx.audit.add(entries)
            return tx.heartbeats.store(beats)

        self._in_flight += len(taken)
        try:
            refused = await self._store.run_first(store_beats)
        except MusterError as error:
            self._failure.warning("heartbeats cannot be stored and are not acknowledged", error.message, held=len(taken))
            self._put_back(taken.values())
            return
        finally:
            self._in_flight -= len(taken)
        self._recovered()
        for cluster, epoch in refused.items():
            taken.pop(cluster).sink.refuse(heartbeats.stale_epoch_error(epoch))
        now, observe = self._clock.monotonic(), counts.lag.observe
        counts.flush.observe(now - began)
        counts.rows.observe(len(taken))
        counts.stored += len(taken)
        counts.refused += len(refused)
        for beat in taken.values():
            observe(now - beat.received)
            beat.sink.acknowledge(beat.sequence, ended_silence=False)

    async def _revive(self) -> Collection[ClusterName]:
        """Stores up to `TOGETHER` beats that end a silence. Returns their clusters, stored or not."""
        self._urgent.clear()
        names = [cluster for cluster, beat in self._held.items() if beat.ends_silence]
        taken = names[:TOGETHER]
        if not taken:
            return ()
        self._in_flight += len(taken)
        try:
            done = await asyncio.gather(*(self._revive_one(self._held.pop(cluster)) for cluster in taken))
        finally:
            self._in_flight -= len(taken)
        if all(done):
            self._recovered()
        if len(names) > TOGETHER and any(done):  # if none is done, the database is unavailable: the next window tries again
            self._urgent.set()
        return taken

    async def _revive_one(self, beat: PendingBeat) -> bool:
        """Store one beat that ends a silence. Returns False if the beat was put back."""
        cluster = beat.cluster
        try:
            is_over = await self._store.run_first(
                heartbeats.revive, beat.stored_at(self._clock.monotonic()), ACTOR, beat.entries
            )
        except StaleEpochError as error:
            self.counts.refused += 1
            beat.sink.refuse(error)
            return True
        except Exception as error:  # noqa: BLE001 - one cluster's failure must not end the loop for all
            self._put_back([beat])
            self._log_permanent(error, cluster)
            return False
        self._logged.discard(cluster)
        self.counts.stored += 1
        self.counts.revived += is_over
        self.counts.lag.observe(self._clock.monotonic() - beat.received)
        beat.sink.acknowledge(beat.sequence, ended_silence=is_over)
        return True

    def _log_permanent(self, error: Exception, cluster: ClusterName) -> None:
        """Logs a permanent error of a cluster, once until the cluster's silence has ended."""
        if cluster not in self._logged and not isinstance(error, PASSING):
            self._logged.add(cluster)
            expected = isinstance(error, MusterError)
            log.error("a silence cannot be ended", cluster=cluster, error=str(error), exc_info=None if expected else error)

    def _put_back(self, beats: Iterable[PendingBeat]) -> None:
        """Puts beats back into the buffer after a failure, except where a newer one has arrived."""
        self.counts.failures += 1
        for beat in beats:
            newer = self._held.setdefault(beat.cluster, beat)
            if newer is not beat:
                newer.entries = (*beat.entries, *newer.entries)
        self._filled.set()

    def _recovered(self) -> None:
        if self._failure.reset():
            log.info("heartbeats are stored again")
