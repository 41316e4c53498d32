"""Owns the taints for unavailable clusters, their alarms, and the brake that holds both.

As in OCM: `unreachable` while availability is Unknown or missing, `unavailable` while it is False. A taint is set at once or
after a delay (`hub.api.managedclusters.availability.Patience`), and never while the brake holds. The alarm (a log line and an
Event) is written with the taint, so exactly once across leaders.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import structlog

from hub.api.events import WARNING, EventRecord
from hub.api.liveness import Brake, BrakeLimits
from hub.api.managedclusters import availability as rules
from hub.api.managedclusters.availability import Patience
from hub.controllers import ACTOR
from hub.controllers.delaying_queue import BatchRunner, DelayingQueue
from hub.ports import Store, Transaction
from hub.registry.liveness import brake
from hub.registry.liveness import taints as aftermath
from hub.registry.liveness.taints import TaintOutcome
from machinery.errors import NotFoundError
from machinery.identity import ClusterName
from machinery.meta.objects import Document
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Reconciler

NAME = "taints"
LOOKED_AT, WRITTEN = 500, 100
"""Clusters per reading and per writing transaction."""
HELD_LOOKS = timedelta(seconds=5)
"""Interval between checks of a brake that holds."""

log = structlog.get_logger(__name__)

Tell = Callable[[EventRecord], None]
_Found = Mapping[ClusterName, TaintOutcome]


class Taints(Reconciler[str]):
    """The queue holds one key; clusters wait here. `tell` records an Event without blocking."""

    def __init__(self, store: Store, clock: Clock, patience: Patience, limits: BrakeLimits, tell: Tell) -> None:
        self._store = store
        self._patience = patience
        self._limits = limits
        self._tell = tell
        self._agenda = DelayingQueue(clock)
        self._held: dict[ClusterName, None] = {}
        self._holds = True  # until the first check

    def wanted(self, cluster: Document) -> bool:
        """Whether the cluster's taints are wrong."""
        return not rules.has_right_taints(cluster)

    def wants(self, cluster: ClusterName) -> None:
        """Check the cluster in the next step, which the caller enqueues."""
        self._agenda.news((cluster,))

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        """Return the time until the next taint is due or the brake is checked."""
        await self._look_at_brake()
        attempts: BatchRunner[TaintOutcome] = BatchRunner()
        await attempts.make(self._agenda.take(LOOKED_AT), self._read)
        due = [cluster for cluster, outcome in attempts.done.items() if outcome.due]
        for cluster in due:
            del attempts.done[cluster]
        for start in range(0, len(due), WRITTEN):
            await attempts.make(due[start : start + WRITTEN], self._write)
        held = [cluster for cluster, outcome in attempts.done.items() if outcome.held]
        self._held |= dict.fromkeys(held)
        self._holds = self._holds or bool(held)
        attempts.settle(self._agenda, lambda outcome: outcome.look_again)
        pause = self._agenda.pause()
        return attempts.ended(HELD_LOOKS if self._holds and (pause is None or pause > HELD_LOOKS) else pause)

    async def _look_at_brake(self) -> None:
        """While the brake holds, check it; after its release, requeue the clusters that it held."""
        if not self._holds:
            return
        state, news = await self._store.run(brake.keep, self._limits, f"{ACTOR}:{NAME}")
        self._alarm(news, {})
        self._holds = state.holds
        if not state.holds:
            self._agenda.news(self._held)
            self._held.clear()

    async def _read(self, clusters: Sequence[ClusterName]) -> _Found:
        return await self._store.read(self._look, clusters)

    async def _write(self, clusters: Sequence[ClusterName]) -> _Found:
        try:
            found, state, news = await self._store.run(self._taint, clusters)
        except NotFoundError:
            if len(clusters) == 1:
                return {clusters[0]: TaintOutcome()}
            raise
        self._holds = state.holds or bool(self._held)
        self._alarm(news, found)
        return found

    def _look(self, tx: Transaction, clusters: Sequence[ClusterName]) -> _Found:
        known = aftermath.circumstances(tx, clusters, self._patience, Brake())
        return {cluster: aftermath.look(tx, cluster, self._patience, known) for cluster in clusters}

    def _taint(self, tx: Transaction, clusters: Sequence[ClusterName]) -> tuple[_Found, Brake, EventRecord | None]:
        actor = f"{ACTOR}:{NAME}"
        state, news = brake.keep(tx, self._limits, actor)
        known = aftermath.circumstances(tx, clusters, self._patience, state)
        found = {cluster: aftermath.taint(tx, cluster, self._patience, known, actor) for cluster in clusters}
        return found, state, news

    def _alarm(self, news: EventRecord | None, found: _Found) -> None:
        """Log the fleet's alarm, whose Event is already stored, then log the clusters' alarms and record their Events."""
        if news is not None:
            level = "error" if news.type == WARNING else "info"
            getattr(log, level)("the brake holds" if news.type == WARNING else "the brake is released", detail=news.message)
        for cluster, outcome in found.items():
            if outcome.told is not None:
                told = outcome.told
                log.warning("cluster cannot be relied on", cluster=cluster, reason=told.reason, detail=told.message)
                self._tell(told)
