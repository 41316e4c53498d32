"""The buffer and its flush loop.

Rules: the newest beat of a cluster replaces the one before; its age is measured by the monotonic clock from its receipt; all go
to the database in one statement, at most once per window, and soon after a quiet one: agents beat in step, and what comes in a
tenth of the window after the first is stored with it. None is acknowledged before that has committed. While the database is
away beats are kept, coalesced, and nothing is acknowledged. A beat that ends a silence is news: it wakes the loop and commits
in a transaction of its own, with the change of availability. Where that fails the beat is stored with the others, and the
cluster's next one tries again: whether beats can be stored is not one cluster's to say. Where a fleet comes back together, some
silences end, then all other beats are stored, then the next silences end.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import structlog

from hub.api.auditrecords.query import AuditEntry
from hub.api.liveness.heartbeat import Beat
from hub.ports import Store
from hub.registry.liveness import heartbeats
from machinery.errors import ConflictError, DeadlineError, MusterError, StaleEpochError, UnavailableError
from machinery.identity import ClusterName
from machinery.observability.metrics import COUNTS, Distribution
from machinery.runtime.clock import Clock
from machinery.runtime.rate_limit import until_tick

ACTOR = "system:hub:heartbeat"
GATHERING = 0.1
"""Part of the window."""
TOGETHER = 100
"""Silences that end before other beats are stored again. Each takes a transaction, and agents wait for five seconds."""
PASSING = (UnavailableError, DeadlineError, ConflictError)
"""What a later attempt may not meet."""

log = structlog.get_logger(__name__)


class BeatSink(Protocol):
    """Where a beat came from. `epoch`: its owner's; 0: it keeps none."""

    epoch: int = 0

    def acknowledge(self, sequence: int, *, ended_silence: bool) -> None:
        """The beat is stored. Returns at once, never raises, and may be told of a session that has ended.

        `ended_silence`: it was held as one that ends a silence, and was stored as such.
        """

    def refuse(self, error: StaleEpochError) -> None:
        """The beat will never be stored. Returns at once, never raises, and may be told of a session that has ended."""


@dataclass(slots=True)
class PendingBeat:
    """A beat that was received, at that time of the monotonic clock."""

    received: float
    available: bool | None
    sink: BeatSink
    sequence: int
    ends_silence: bool
    entries: tuple[AuditEntry, ...] = ()
    """Audit records to be stored with it: its own, and those of beats that it replaced."""


@dataclass(slots=True)
class BeatCounts:
    """What came of the beats since the start."""

    stored: int = 0
    """Made durable, by their clusters: of several that came within a window one."""
    revived: int = 0
    """Those of them that ended a silence."""
    refused: int = 0
    """Of agents that report to another hub since."""
    failures: int = 0
    """Attempts to store that the database refused; nothing was lost by them."""
    lag: Distribution = field(default_factory=Distribution)
    """Seconds from the receipt of a beat until it was durable."""
    flush: Distribution = field(default_factory=Distribution)
    """Seconds that a flush took."""
    rows: Distribution = field(default_factory=lambda: Distribution(COUNTS))
    """How many beats a flush stored."""


class BeatBuffer:
    """Beats of all sessions of this process. `run` must be running for anything to be stored."""

    def __init__(self, store: Store, clock: Clock, window: timedelta) -> None:
        self._store = store
        self._clock = clock
        self._window = window
        self._held: dict[ClusterName, PendingBeat] = {}
        self._filled = asyncio.Event()
        self._urgent = asyncio.Event()
        self._failing = False
        self._trouble = ""
        self._in_hand = 0
        self._stuck: set[ClusterName] = set()
        self.counts = BeatCounts()

    @property
    def storing(self) -> bool:
        """Whether beats can be stored now: False from the first failure until some were stored again, or none waits."""
        return not self._failing or not (self._held or self._in_hand)

    def __len__(self) -> int:
        """Beats that are not stored yet."""
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
        """Takes a beat that was received just now; one of an outdated epoch does not push aside its successor's."""
        held = PendingBeat(self._clock.monotonic(), available, sink, sequence, ends_silence, () if entry is None else (entry,))
        known = self._held.get(cluster)
        if known is not None and 0 < sink.epoch < known.sink.epoch:
            sink.refuse(heartbeats.outdated(known.sink.epoch))
        else:
            self._take(cluster, held)
        return held

    def hold_again(self, cluster: ClusterName, held: PendingBeat) -> None:
        """The cluster was called silent in the moment in which this beat came: it, or a newer one that is here, ends that."""
        newest = max(held, self._held.get(cluster, held), key=lambda each: each.received)
        newest.ends_silence = True
        self._take(cluster, newest)

    def _take(self, cluster: ClusterName, held: PendingBeat) -> None:
        known = self._held.get(cluster)
        if known is not None and known is not held and known.entries:
            held.entries = (*known.entries, *held.entries)
        self._held[cluster] = held
        self._filled.set()
        if held.ends_silence:
            self._urgent.set()

    def drop(self, cluster: ClusterName, sink: BeatSink) -> None:
        """Forgets what is held of a sink that has gone."""
        known = self._held.get(cluster)
        if known is not None and known.sink is sink:
            del self._held[cluster]

    async def run(self) -> None:
        """Flushes for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._filled.wait()
            await self._is_urgent_before(loop.time() + self._window.total_seconds() * GATHERING)
            await self.flush()
            # Until the window is over only the end of a silence is worth a transaction, and one that was begun is finished.
            end = loop.time() + until_tick(self._window)
            while await self._is_urgent_before(end):
                await self._revive()

    async def _is_urgent_before(self, end: float) -> bool:
        if asyncio.get_running_loop().time() >= end:
            return False  # where many come back together there is always one more: the other beats have waited long enough
        try:
            async with asyncio.timeout_at(end):
                await self._urgent.wait()
        except TimeoutError:
            return False
        return True

    async def flush(self) -> None:
        """Stores and acknowledges what is held now. A database that is away leaves everything held."""
        tried = await self._revive()
        # What came meanwhile and ends a silence waits for its own turn: acknowledged among the others it would end none.
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
        """A flush that began at that moment of the monotonic clock, and has just ended."""
        now, counts = self._clock.monotonic(), self.counts
        counts.flush.observe(now - began)
        counts.rows.observe(len(stored))
        counts.stored += len(stored)
        counts.refused += refused
        observe = counts.lag.observe
        for held in stored:
            observe(now - held.received)

    async def _revive(self) -> Collection[ClusterName]:
        """The end of some silences; whose turn it was."""
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
        if len(names) > TOGETHER and any(done):  # else the database is away, and is asked again when the window is over
            self._urgent.set()
        return urgent.keys()

    async def _revive_one(self, cluster: ClusterName, held: PendingBeat) -> bool:
        """False: it is held again."""
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
        """Until the next flush. What does not pass is told once, until the cluster's silence has ended."""
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
        """Back into the buffer, except where a newer beat came meanwhile."""
        if error.message != self._trouble:
            log.warning("heartbeats cannot be stored and are not acknowledged", error=error.message, held=len(taken))
        self._failing, self._trouble = True, error.message
        self.counts.failures += 1
        for cluster, held in taken.items():
            self._put_back(cluster, held)
        self._filled.set()

    def _put_back(self, cluster: ClusterName, held: PendingBeat) -> None:
        newer = self._held.setdefault(cluster, held)
        if newer is not held and held.entries:
            newer.entries = (*held.entries, *newer.entries)

    def _stored(self) -> None:
        if self._failing:
            log.info("heartbeats are stored again")
            self._failing, self._trouble = False, ""


def _entries(held: Iterable[PendingBeat]) -> Sequence[AuditEntry]:
    return [entry for one in held for entry in one.entries]
