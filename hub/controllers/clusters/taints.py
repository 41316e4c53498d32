"""Owns the taints for unavailable clusters, their alarms, and the brake that postpones taints and alarms.

As in OCM: `unreachable` while availability is Unknown or missing, `unavailable` while it is False. A cluster
whose agent uses another hub gets no taint. A taint is set immediately, or after a delay (`availability.TaintDelays`). While the
brake is active, silent clusters get no taint. The alarm is logged with the taint, so that it is logged exactly once, even if
the leader changes. The Event about the change of availability does not wait for the taint (`TransitionRecorder`).
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import structlog

from hub.api.events import WARNING, EventRecord
from hub.api.liveness import Brake, BrakeLimits
from hub.api.managedclusters import availability as availability_rules
from hub.api.managedclusters.availability import Damping, TaintDelays
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.controllers import ACTOR
from hub.controllers.builder import PERIODIC, ControllerBuilder
from hub.ports import Store, Transaction
from hub.registry.liveness import brake, taints as service
from hub.registry.liveness.taints import TaintOutcome
from machinery.errors import NotFoundError
from machinery.identity import ClusterName
from machinery.meta.objects import Document
from machinery.runtime.controller import Batch, BatchReconciler

NAME = "taints"
READ, WRITTEN = 500, 100
"""Clusters per reading and per writing transaction."""
BRAKE_CHECKS = timedelta(seconds=5)
"""Interval between checks while the brake is active."""
PERIOD = timedelta(minutes=5)
GATHER = timedelta(milliseconds=250)
"""Delay of a check. A joining cluster changes several times in a short time, and all these changes cause one check."""

log = structlog.get_logger(__name__)

_Found = Mapping[ClusterName, TaintOutcome]


class TaintReconciler(BatchReconciler[str]):
    """Sets and removes taints. Keys are the names of clusters; the key PERIODIC only checks the brake."""

    at_most = READ

    def __init__(self, store: Store, delays: TaintDelays, limits: BrakeLimits) -> None:
        self._store = store
        self._delays = delays
        self._limits = limits
        self._held: dict[str, None] = {}
        self._holds = True  # assumed until the first check

    def wanted(self, cluster: Document) -> bool:
        return not availability_rules.has_right_taints(cluster)

    async def reconcile_all(self, keys: Sequence[str]) -> Batch[str]:
        batch, due = Batch[str](), list[str]()

        def delays(found: _Found) -> Mapping[str, timedelta | None]:
            self._held |= dict.fromkeys(name for name, outcome in found.items() if outcome.held)
            self._holds = self._holds or any(outcome.held for outcome in found.values())
            return {name: outcome.look_again for name, outcome in found.items()}

        async def read(names: Sequence[str]) -> Mapping[str, timedelta | None]:
            found = await self._store.read(self._look, names)
            due.extend(name for name, outcome in found.items() if outcome.due)
            return delays({name: outcome for name, outcome in found.items() if not outcome.due})

        async def write(names: Sequence[str]) -> Mapping[str, timedelta | None]:
            return delays(await self._write(names))

        released = await self._check_brake()
        await batch.run([*dict.fromkeys((*released, *(key for key in keys if key != PERIODIC)))], read, at_once=READ)
        await batch.run(due, write, at_once=WRITTEN)
        if self._holds:
            batch.done[PERIODIC] = BRAKE_CHECKS
        return batch

    async def _check_brake(self) -> Sequence[str]:
        """While the brake is active, check it. When it is released, return the clusters that it held."""
        if not self._holds:
            return ()
        state, event = await self._store.run(brake.keep, self._limits, f"{ACTOR}:{NAME}")
        self._alarm(event, {})
        self._holds = state.holds
        if state.holds:
            return ()
        released, self._held = tuple(self._held), {}
        return released

    async def _write(self, names: Sequence[str]) -> _Found:
        try:
            found, state, event = await self._store.run(self._taint, names)
        except NotFoundError:
            if len(names) == 1:
                return {ClusterName(names[0]): TaintOutcome()}
            raise
        self._holds = state.holds or bool(self._held)
        self._alarm(event, found)
        return found

    def _look(self, tx: Transaction, names: Sequence[str]) -> _Found:
        clusters = [ClusterName(name) for name in names]
        known = service.read_context(tx, clusters, self._delays, Brake())
        return {cluster: service.due_taints(tx, cluster, self._delays, known) for cluster in clusters}

    def _taint(self, tx: Transaction, names: Sequence[str]) -> tuple[_Found, Brake, EventRecord | None]:
        clusters, actor = [ClusterName(name) for name in names], f"{ACTOR}:{NAME}"
        state, event = brake.keep(tx, self._limits, actor)
        known = service.read_context(tx, clusters, self._delays, state)
        found = {cluster: service.taint(tx, cluster, self._delays, known, actor) for cluster in clusters}
        return found, state, event

    def _alarm(self, brake_event: EventRecord | None, found: _Found) -> None:
        """Log the alarms of the brake and of the clusters. Their Events are already recorded."""
        if brake_event is not None and brake_event.type == WARNING:
            log.error("the brake is active", detail=brake_event.message)
        elif brake_event is not None:
            log.info("the brake is released", detail=brake_event.message)
        for cluster, outcome in found.items():
            if outcome.alarm:
                log.warning("cluster is tainted", cluster=cluster, detail=outcome.alarm)


def register(builder: ControllerBuilder) -> None:
    settings = builder.settings
    damping = Damping(threshold=settings.flap_threshold, window=settings.flap_window, hold=settings.flap_hold)
    delays = TaintDelays(delay=settings.taint_delay, damping=damping)
    reconciler = TaintReconciler(builder.store, delays, builder.brake_limits)
    controller = builder.add(NAME, reconciler)
    builder.watch_names(MANAGED_CLUSTERS, controller, reconciler.wanted, delay=GATHER)
    builder.every(PERIOD, controller, at_once=True)
