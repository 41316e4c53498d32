"""Connects the controllers of availability, taints and staleness, configured by the settings."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from hub.api.events import EventRecord
from hub.api.liveness import BrakeLimits
from hub.api.managedclusters.availability import Damping, Patience, StalenessPolicy
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.controllers.batch import TOGETHER
from hub.controllers.clock_guard import SETTLED, Steadiness
from hub.controllers.clusters import availability, staleness, taints
from hub.controllers.clusters.availability import AvailabilityController, Since
from hub.controllers.clusters.staleness import Staleness
from hub.controllers.clusters.taints import Taints
from hub.controllers.delaying_queue import SOON
from hub.controllers.feed import EventHandler
from hub.ports import Store
from hub.settings import HubSettings
from machinery.identity import ClusterName
from machinery.meta.objects import Document, Key
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Controller
from machinery.runtime.scheduler import Timetable

PERIOD = timedelta(minutes=5)
ALL = "all"
GATHER = timedelta(milliseconds=250)
"""A joining cluster changes several times at once, and hundreds may join together: their checks wait for this time."""


class AvailabilityControllers:
    """`since`: returns since when beats could be stored. `tell` records an Event without blocking."""

    def __init__(
        self, store: Store, settings: HubSettings, clock: Clock, since: Since, tell: Callable[[EventRecord], None]
    ) -> None:
        # end of a grace -> Unknown
        judging = AvailabilityController(store, clock, window=settings.flush_window, since=since)
        self._availability = Controller(availability.NAME, judging, longest=SOON)
        # effects of Unknown: taints and alarms, stale marks and removals
        tainting = Taints(store, clock, patience_of(settings), brake_of(settings), tell)
        self._taints = Controller(taints.NAME, tainting)
        policy = stale_policy_of(settings)
        steady = Steadiness(clock, min(SETTLED, policy.mark))  # a policy of seconds needs no ten minutes of trust
        aging = Staleness(store, policy, brake_of(settings), since=since, steady=steady)
        self._staleness = Controller(staleness.NAME, aging)
        self.routes: Sequence[EventHandler] = (
            _waiting(judging.wants, self._availability),
            _waiting(tainting.wants, self._taints, tainting.wanted),
        )
        self.controllers: Sequence[Controller[Any]] = (self._availability, self._taints, self._staleness)

    def wake(self, timetable: Timetable) -> None:
        """Add the periodic work to the timetable."""
        looking = partial(self._taints.enqueue, TOGETHER)
        timetable.every(PERIOD, looking, name=taints.NAME, jitter=0.25, at_once=True)
        timetable.every(staleness.PERIOD, partial(self._staleness.enqueue, ALL), name=staleness.NAME, jitter=0.25)

    def rest(self, timetable: Timetable) -> None:
        """Remove it from the timetable."""
        for controller in (self._taints, self._staleness):
            timetable.drop(controller.name)


def patience_of(settings: HubSettings) -> Patience:
    damping = Damping(threshold=settings.flap_threshold, window=settings.flap_window, hold=settings.flap_hold)
    return Patience(delay=settings.taint_delay, damping=damping)


def brake_of(settings: HubSettings) -> BrakeLimits:
    return BrakeLimits(share=settings.brake_share, at_least=settings.brake_clusters, window=settings.brake_window)


def stale_policy_of(settings: HubSettings) -> StalenessPolicy:
    return StalenessPolicy(mark=settings.stale_after, remove=settings.stale_removal_after)


def _waiting(
    wants: Callable[[ClusterName], None],
    controller: Controller[str],
    wanted: Callable[[Document], bool] = lambda _cluster: True,
) -> EventHandler:
    """Event handler for a reconciler in which each cluster waits for its own time; the queue holds one key for all."""

    def enqueue(key: Key) -> None:
        wants(ClusterName(key.name))
        controller.queue.add_after(TOGETHER, GATHER)

    return EventHandler(MANAGED_CLUSTERS, enqueue, wanted)
