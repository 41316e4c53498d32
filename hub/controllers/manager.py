"""The controller manager: runs the controllers of the leading replica in one term."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from hub.api.certificates import Lifetimes
from hub.api.events import EventRecord
from hub.api.meta.change import REVOCATIONS
from hub.controllers.builder import ControllerBuilder, DecisionRecorder, Since
from hub.controllers.certificates import approval, authenticators, rotation
from hub.controllers.certificates.rotation import Rotation
from hub.controllers.clusters import addons, availability, cluster_sets, deletion, staleness, taints
from hub.controllers.hub import replicas, retention
from hub.controllers.observers.transition_recorder import TransitionRecorder
from hub.ports import Store
from hub.ports.identities import Issuer
from hub.settings import HubSettings
from machinery.lifecycle.startup import in_time
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Controller
from machinery.runtime.scheduler import Scheduler
from machinery.runtime.tasks import GuardedTasks

SYNCED_WITHIN = timedelta(seconds=60)
CONTROLLERS: Sequence[Callable[[ControllerBuilder], None]] = (
    deletion.register,
    cluster_sets.register,
    addons.register,
    approval.register,
    availability.register,
    taints.register,
    staleness.register,
    authenticators.register,
    retention.register,
    replicas.register,
)


class ControllerManager:
    """`store` is fenced (`hub.election.fence`): it always reads, and writes only while this replica leads in that term.

    Controllers use it as any store, and stop when the term ends. Each term has new controllers, which begin by examining every
    object. `since`: returns since when beats could be stored. `decisions`: audits the decisions of rules. `make_rotation`:
    makes the controller of CA changes; None: there is none.
    """

    def __init__(
        self,
        store: Store,
        issuer: Issuer,
        settings: HubSettings,
        lifetimes: Lifetimes,
        *,
        clock: Clock,
        since: Since,
        decisions: DecisionRecorder | None = None,
        make_rotation: Callable[[Store, Callable[[EventRecord], None]], Rotation] | None = None,
    ) -> None:
        builder = ControllerBuilder(store, issuer, settings, lifetimes, clock=clock, since=since, decisions=decisions)
        for register in CONTROLLERS:
            register(builder)
        if make_rotation is not None:
            changing = builder.add(rotation.NAME, make_rotation(store, builder.record_event))
            builder.every(rotation.PERIOD, changing, jitter=0, at_once=True)
        self.begin = replicas.register_leader_events(builder)
        """Records the Events of the term that begins and of earlier unreported ones."""
        self.transitions = TransitionRecorder(builder.record_event)
        builder.handlers.observers.append(self.transitions)
        builder.watch(REVOCATIONS, lambda _key: None)  # observed only
        self._builder = builder
        self._synced = asyncio.Event()

    def wake(self, scheduler: Scheduler) -> None:
        """Add the periodic work to the scheduler."""
        self._builder.start_periodic(scheduler)

    def rest(self, scheduler: Scheduler) -> None:
        """Remove it from the scheduler."""
        self._builder.stop_periodic(scheduler)

    async def start(self, tasks: GuardedTasks) -> None:
        """Return when every object was examined once. Raises StartError when that takes too long."""
        for controller in self.controllers:
            tasks.start(controller.name, controller.run())
        tasks.start("feed", self._builder.informer(self._synced).run())
        then = "is the database overloaded?"
        await in_time("the controllers' first look at every object", self._synced.wait(), SYNCED_WITHIN, then=then)

    def waiting(self) -> Mapping[str, int]:
        """Keys in each controller's queue."""
        return {controller.name: len(controller.queue) for controller in self.controllers}

    @property
    def controllers(self) -> Sequence[Controller[Any]]:
        """All controllers of this term."""
        return tuple(self._builder.controllers.values())
