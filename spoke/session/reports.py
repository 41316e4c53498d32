"""The reports of one session: status, upkeep of the ManagedCluster, managed namespaces, and events."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from typing import Any, TypeVar

import structlog

from machinery.errors import MusterError
from machinery.identity import parse_agent_user
from machinery.meta.conditions import FALSE, Condition
from machinery.runtime.controller import Controller, Reconciler
from spoke.controllers.managed_namespaces import KEY as NAMESPACES, ManagedNamespaceController
from spoke.controllers.status import CHANGED, RESYNC, UPKEEP, ClusterReconciler, StatusController
from spoke.domain.names import AgentNames
from spoke.domain.report import AgentEvent, hub_label, news_of
from spoke.observability.progress import AgentProgress
from spoke.ports.hub import Desired, HubLostError, HubSession
from spoke.session.context import ActiveSession, AgentContext

log = structlog.get_logger(__name__)


EVENT_QUEUE = 20
"""Largest number of waiting events; the oldest is dropped."""
EVENT_BURST = 5
EVENT_PERIOD = 10.0
"""Seconds between two events after the first ones: less than a hub allows."""


class SessionEvents:
    """Events of one session. They are sent only while `run` runs."""

    def __init__(self, session: HubSession) -> None:
        self._session = session
        self._waiting: deque[AgentEvent] = deque(maxlen=EVENT_QUEUE)
        self._told: dict[tuple[str, str], str] = {}
        self._wake = asyncio.Event()

    def tell(self, news: AgentEvent) -> None:
        """Queue an event, unless it repeats the last one with its reason and add-on."""
        about = (news.reason, news.addon)
        if self._told.get(about) != news.message:
            self._told[about] = news.message
            self._waiting.append(news)
            self._wake.set()

    async def run(self) -> None:
        """Send events until cancelled. Raises HubLostError."""
        left = EVENT_BURST
        while True:
            await self._wake.wait()
            if not left:
                await asyncio.sleep(EVENT_PERIOD)
                left = 1
            news = self._waiting.popleft()
            left -= 1
            if not self._waiting:
                self._wake.clear()
            try:
                await self._session.tell(news)
            except HubLostError:
                raise
            except MusterError as error:
                log.info("news.not_told", reason=news.reason, error=error.message)


K = TypeVar("K")

TEAR_AFTER = timedelta(seconds=1)
"""How long a controller's step may continue after the session has ended."""


class ClusterReports:
    """The reports over one link. Nothing is sent before the hub accepts the cluster."""

    def __init__(self, link: ActiveSession, agent: AgentContext, conditions: dict[str, Condition]) -> None:
        """`conditions`: further conditions of the cluster to report, by type."""
        world, options = agent.world, agent.options
        self._conditions = conditions
        self._telling = SessionEvents(link.session)
        label = hub_label(link.connection.hub.hub_id, link.connection.hub.server)
        self._namespaces = ManagedNamespaceController(world.spoke, label, self._namespaces_changed)
        self._status = StatusController(
            link.session,
            world.spoke,
            agent.watch,
            options.claims,
            endpoints=options.endpoints,
            further=lambda: tuple(conditions.values()),
            namespaces=lambda: self._namespaces.reports,
            tell=self._telling.tell,
        )
        user = parse_agent_user(link.connection.certificate.subject.common_name)
        names = AgentNames(*user) if user is not None else None
        upkeep = ClusterReconciler(link.client, world.spoke, names, options.annotations, options.endpoints)
        self._status_controller = watched("status", self._status, agent.progress)
        self._namespaces_controller = watched("managed-namespaces", self._namespaces, agent.progress)
        self._upkeep_controller = watched("cluster-upkeep", upkeep, agent.progress)

    def work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        """Name and coroutine of each task of the session."""
        yield "events", self._telling.run()
        for controller in (self._status_controller, self._namespaces_controller, self._upkeep_controller):
            yield controller.name, controller.run()

    def wakes(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Name and function of each periodic resync."""
        yield "status", lambda: self._status_controller.enqueue(RESYNC)
        yield "managed-namespaces", lambda: self._namespaces_controller.enqueue(NAMESPACES)

    def take(self, desired: Desired) -> None:
        """Apply the state that the hub wants."""
        self._status.accept(accepted=desired.accepted)
        if not desired.accepted:
            return
        self.changed()
        self._upkeep_controller.enqueue(UPKEEP)
        if self._namespaces.want(desired.namespaces, deleting=desired.deleting):
            self._namespaces_controller.enqueue(NAMESPACES)

    def changed(self) -> None:
        """Report a change of the cluster."""
        self._status_controller.enqueue(CHANGED)

    def tell(self, condition: Condition) -> None:
        """Add a condition of the cluster to all further reports, and send an event about it."""
        self._conditions[condition.type] = condition
        self._telling.tell(news_of(condition))
        self.changed()

    def news(self, news: AgentEvent) -> None:
        """Send an event for operators to the hub."""
        self._telling.tell(news)

    def _namespaces_changed(self) -> None:
        for report in self._namespaces.reports:
            if report.condition.status == FALSE:
                self._telling.tell(news_of(report.condition))
        self.changed()


def watched(name: str, reconciler: Reconciler[K], progress: AgentProgress, *, workers: int = 1) -> Controller[K]:
    """A controller whose steps the probes observe; it ignores HubLostError, which the session handles."""

    def observe(controller: str, outcome: str) -> None:
        progress.counts.steps[controller, outcome] += 1

    return Controller(name, _Watched(name, reconciler, progress), workers=workers, observe=observe, grace=TEAR_AFTER)


class _Watched(Reconciler[K]):
    """Records begin and end of each step for `/livez`, and drops HubLostError."""

    def __init__(self, name: str, inner: Reconciler[K], progress: AgentProgress) -> None:
        self._name = name
        self._inner = inner
        self._progress = progress

    async def reconcile(self, key: K) -> timedelta | None:
        with self._progress.working(self._name):
            try:
                return await self._inner.reconcile(key)
            except HubLostError:
                return None  # the whole session ends with it, and the next one reconciles everything
