"""The reports of one session: status, annotations and URLs of the ManagedCluster, managed namespaces, add-ons, and Events."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TypeVar

import structlog

from machinery.errors import MusterError
from machinery.identity import parse_agent_user
from machinery.meta.conditions import FALSE, Condition
from machinery.runtime.controller import Controller, Reconciler
from spoke.controllers.addons import AddOnCertificates, AddOnLeaseController
from spoke.controllers.managed_namespaces import KEY as NAMESPACES, ManagedNamespaceController
from spoke.controllers.status import CHANGED, RESYNC, UPKEEP, ClusterReconciler, StatusReconciler
from spoke.credentials.slot import slot_at
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.report import AgentEvent, hub_label, news_of
from spoke.observability.progress import AgentProgress
from spoke.ports.hub import Desired, HubLostError, HubSession
from spoke.registration.addon_credentials import AddOnContext
from spoke.registration.csr_flow import rotated_condition
from spoke.session.context import ActiveSession, AgentContext

log = structlog.get_logger(__name__)


EVENT_QUEUE = 20
"""Largest number of queued Events. A further Event replaces the oldest."""
EVENT_BURST = 5
EVENT_PERIOD = 10.0
"""Seconds between two Events after the first EVENT_BURST Events. The hub permits a higher rate."""


class SessionEvents:
    """Queues the Events of one session. Sends them only while `run` runs."""

    def __init__(self, session: HubSession) -> None:
        self._session = session
        self._waiting: deque[AgentEvent] = deque(maxlen=EVENT_QUEUE)
        self._last: dict[tuple[str, str], str] = {}
        """The last message by reason and add-on."""
        self._wake = asyncio.Event()

    def add(self, event: AgentEvent) -> None:
        """Queue an Event, unless it repeats the last Event with the same reason and add-on."""
        about = (event.reason, event.addon)
        if self._last.get(about) != event.message:
            self._last[about] = event.message
            self._waiting.append(event)
            self._wake.set()

    async def run(self) -> None:
        """Send queued Events until cancelled. Raises HubLostError."""
        left = EVENT_BURST
        while True:
            await self._wake.wait()
            if not left:
                await asyncio.sleep(EVENT_PERIOD)
                left = 1
            event = self._waiting.popleft()
            left -= 1
            if not self._waiting:
                self._wake.clear()
            try:
                await self._session.send_event(event)
            except HubLostError:
                raise
            except MusterError as error:
                log.info("event.not_sent", reason=event.reason, error=error.message)


K = TypeVar("K")

STEP_GRACE = timedelta(seconds=1)
"""Time for which a call of `reconcile` may continue after the session has ended."""
REGISTRATION_RESYNC = timedelta(minutes=10)
CHECKS_PER_REPORT = 5
"""Number of checks of the cluster after which an unchanged status is reported again."""
Resyncs = Mapping[str, tuple[timedelta, Callable[[], None]]]
"""Period and function of each periodic resync, by name."""


class ClusterReports:
    """Sends the reports about the cluster over one session. Sends no status before the hub accepts the cluster."""

    def __init__(self, active: ActiveSession, agent: AgentContext) -> None:
        ports, options = agent.ports, agent.options
        self._conditions, self._certificate = agent.conditions, active.connection.certificate
        self._checks = 0
        self._events = SessionEvents(active.session)
        label = hub_label(active.connection.hub.hub_id, active.connection.hub.server)
        self._namespaces = ManagedNamespaceController(ports.managed_cluster, label, self._namespaces_changed)
        self._status = StatusReconciler(
            active.session,
            ports.managed_cluster,
            agent.watch,
            options.claims,
            endpoints=options.endpoints,
            further=self._renewals,
            namespaces=lambda: self._namespaces.reports,
            record_event=self._events.add,
        )
        user = parse_agent_user(self._certificate.subject.common_name)
        names = AgentNames(*user) if user is not None else None
        upkeep = ClusterReconciler(active.client, ports.managed_cluster, names, options.annotations, options.endpoints)
        self._status_controller = watched("status", self._status, agent.progress)
        self._namespaces_controller = watched("managed-namespaces", self._namespaces, agent.progress)
        self._upkeep_controller = watched("cluster-upkeep", upkeep, agent.progress)
        self.controllers = (self._status_controller, self._namespaces_controller, self._upkeep_controller)
        self.send_event = self._events.add
        self.send_events = self._events.run
        self.resyncs: Resyncs = {
            "status": (options.resync, self._check),
            "managed-namespaces": (options.resync, lambda: self._namespaces_controller.enqueue(NAMESPACES)),
        }

    def accept(self, desired: Desired) -> None:
        """Apply the state that the hub wants."""
        self._status.accept(accepted=desired.accepted)
        if not desired.accepted:
            return
        self.changed()
        self._upkeep_controller.enqueue(UPKEEP)
        if self._namespaces.want(desired.namespaces, deleting=desired.deleting):
            self._namespaces_controller.enqueue(NAMESPACES)

    def _renewals(self) -> tuple[Condition, ...]:
        """Return the condition about renewals; if the last one was about another certificate, that of this certificate."""
        own = self._conditions.get(self._certificate.serial)
        return (own or rotated_condition(self._certificate),) if self._conditions else ()

    def _check(self) -> None:
        self._checks += 1
        self._status_controller.enqueue(CHANGED if self._checks % CHECKS_PER_REPORT else RESYNC)

    def changed(self) -> None:
        """Report a change of the cluster."""
        self._status_controller.enqueue(CHANGED)

    def add_condition(self, condition: Condition) -> None:
        """Report the condition of the session's certificate from now on, and send an Event about it."""
        self._conditions.clear()
        self._conditions[self._certificate.serial] = condition
        self._events.add(news_of(condition))
        self.changed()

    def _namespaces_changed(self) -> None:
        for report in self._namespaces.reports:
            if report.condition.status == FALSE:
                self._events.add(news_of(report.condition))
        self.changed()


class AddOnReports:
    """Reports the health of add-ons (by their Leases) over one session, and maintains their credentials."""

    def __init__(self, active: ActiveSession, agent: AgentContext, identity: AgentIdentity) -> None:
        ports, options, hub = agent.ports, agent.options, active.connection.hub_id
        self._enabled = options.addons.enabled
        self._leases = AddOnLeaseController(
            active.session, ports.managed_cluster, ports.management, ports.clock, grace=options.addons.lease_grace
        )
        registered = AddOnContext(
            agent=identity,
            kubeconfig=active.connection.kubeconfig,
            secrets=ports.addon_secrets,
            pending=lambda secret: slot_at(ports.secrets, secret, hub),
            duration=options.duration,
            hub_id=hub,
            options=options.addons,
        )
        self._certificates = AddOnCertificates(
            active.client, active.session, registered, agent.addon_credentials, agent.hub_clock
        )
        self.trust_hub_by = self._certificates.trust_hub_by
        self._lease_controller = watched("addon-lease", self._leases, agent.progress)
        self._certificate_controller = watched("addon-registration", self._certificates, agent.progress, workers=4)
        self.controllers = (self._lease_controller, self._certificate_controller)
        self._known = False
        self.resyncs: Resyncs = {
            "addon-lease": (options.addons.lease_period, self._resync_leases),
            "addon-registration": (REGISTRATION_RESYNC, self._resync_certificates),
        }

    def accept(self, desired: Desired) -> None:
        """Apply the state that the hub wants."""
        if not desired.addons_known or not self._enabled:
            return
        addons = desired.addons if desired.accepted else ()
        names = {*self._leases.names, *self._certificates.names, *(addon.name for addon in addons)}
        self._leases.set_addons(addons)
        self._certificates.set_addons(desired.addons, desired.renewal)
        self._known = True
        if desired.accepted:
            for name in names:
                self._lease_controller.enqueue(name)
                self._certificate_controller.enqueue(name)

    def _resync_leases(self) -> None:
        for name in self._leases.names:
            self._lease_controller.enqueue(name)

    def _resync_certificates(self) -> None:
        if self._known:  # add-ons that cannot be read now are not deleted
            for name in self._certificates.names:
                self._certificate_controller.enqueue(name)


def watched(name: str, reconciler: Reconciler[K], progress: AgentProgress, *, workers: int = 1) -> Controller[K]:
    """Return a controller that liveness and metrics observe. It ignores HubLostError, because the session handles it."""

    class Watched(Reconciler[K]):
        async def reconcile(self, key: K) -> timedelta | None:
            with progress.working(name):
                try:
                    return await reconciler.reconcile(key)
                except HubLostError:
                    return None  # the whole session ends, and the next session reconciles everything

    def observe(controller: str, outcome: str) -> None:
        progress.counts.steps[controller, outcome] += 1

    return Controller(name, Watched(), workers=workers, observe=observe, grace=STEP_GRACE)
