"""The reports of one session: status, upkeep of the ManagedCluster, managed namespaces, and events."""

from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from machinery.identity import parse_agent_user
from machinery.meta.conditions import FALSE, Condition
from machinery.runtime.controller import Controller, Reconciler
from spoke.controllers.cluster_upkeep import KEY as UPKEEP
from spoke.controllers.cluster_upkeep import ClusterUpkeep
from spoke.controllers.managed_namespaces import KEY as NAMESPACES
from spoke.controllers.managed_namespaces import ManagedNamespaceController
from spoke.controllers.status import CHANGED, RESYNC, StatusController
from spoke.domain.namespace import hub_label
from spoke.domain.report import AgentEvent, news_of
from spoke.observability.progress import AgentProgress
from spoke.ports import Desired, HubLostError
from spoke.session.context import ActiveSession, AgentContext
from spoke.session.hub_events import HubEvents

K = TypeVar("K")

TEAR_AFTER = timedelta(seconds=1)
"""How long a controller's step may continue after the session has ended."""


class ClusterReports:
    """The reports over one link. Nothing is sent before the hub accepts the cluster."""

    def __init__(self, link: ActiveSession, agent: AgentContext, conditions: dict[str, Condition]) -> None:
        """`conditions`: further conditions of the cluster to report, by type."""
        world, options = agent.world, agent.options
        self._conditions = conditions
        self._telling = HubEvents(link.session)
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
        names = parse_agent_user(link.connection.certificate.subject.common_name)
        upkeep = ClusterUpkeep(link.client, world.spoke, names, options.annotations, options.endpoints)
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
