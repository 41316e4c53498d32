"""The controller manager: runs the controllers of the leading replica in one term."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from hub.api.meta.change import REVOCATIONS
from hub.controllers.builder import ControllerBuilder
from hub.controllers.certificates import approval, authenticators
from hub.controllers.clusters import addons, availability, cluster_sets, deletion, staleness, taints
from hub.controllers.hub import replicas, retention
from hub.controllers.observers.transition_recorder import TransitionRecorder
from machinery.lifecycle.startup import in_time
from machinery.runtime.controller import Controller
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
    """Runs all controllers of one term. They first examine every object.

    The store of `builder` is fenced (`hub.election.fence`): reads always work, writes only while this replica leads in this
    term. Controllers use it like any store, and stop when the term ends.
    """

    def __init__(self, builder: ControllerBuilder) -> None:
        for register in CONTROLLERS:
            register(builder)
        self.begin = replicas.register_leader_events(builder)
        """Records the Events of the term that begins and of earlier terms without an Event."""
        self.transitions = TransitionRecorder(builder.record_event)
        builder.handlers.observers.append(self.transitions)
        builder.watch(REVOCATIONS, lambda _key: None)  # observed only
        self.start_periodic = builder.start_periodic
        self.stop_periodic = builder.stop_periodic
        self._builder = builder
        self._synced = asyncio.Event()

    async def start(self, tasks: GuardedTasks) -> None:
        """Start the controllers. Return when the informer has sent every object once. Raises StartError after SYNCED_WITHIN."""
        for controller in self.controllers:
            tasks.start(controller.name, controller.run())
        tasks.start("feed", self._builder.informer(self._synced).run())
        then = "is the database overloaded?"
        await in_time("the controllers' first pass over all objects", self._synced.wait(), SYNCED_WITHIN, then=then)

    def waiting(self) -> Mapping[str, int]:
        return {controller.name: len(controller.queue) for controller in self.controllers}

    @property
    def controllers(self) -> Sequence[Controller[Any]]:
        return tuple(self._builder.controllers.values())
