"""One session with a hub. Its controllers and streams are one group of tasks, which ends as a whole.

A session ends when the hub is lost (HubLostError), or when a successor takes over. A successor is another session,
opened because of a new certificate, a drain or a move. It takes over after its first acknowledged beat. During a handover the
loss of the old session does not count yet, because the hub ends the old session when the successor begins.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import structlog

from machinery.errors import MusterError
from machinery.identity import HubId
from machinery.runtime.tasks import cancel_and_wait
from spoke.controllers.certificate_rotation import KEY, CertificateRotation
from spoke.controllers.heartbeat_sender import HeartbeatSender
from spoke.credentials.kubeconfigs import HubConnection, stored_connection
from spoke.credentials.slot import Contents
from spoke.domain.names import AgentIdentity
from spoke.domain.next_step import SessionLoss
from spoke.domain.schedule import UNANSWERED, ack_timeout
from spoke.observability.progress import REPORTING, WAITING_FOR_ACCEPTANCE
from spoke.ports.hub import Desired, HubLostError, TransportFeature
from spoke.registration.csr_flow import CSRFlow
from spoke.session.context import ActiveSession, AgentContext
from spoke.session.reports import AddOnReports, ClusterReports, watched
from spoke.session.trust_bundle_sync import TrustBundleSync

SOONEST_LEAVE = timedelta(milliseconds=500)
"""Shortest delay before an agent leaves a draining replica. If it is the only replica, the agent returns there repeatedly."""

HUB_LIST_PERIOD = timedelta(seconds=1)
"""Shortest time between two messages with the hub list. The next message contains all changes in between."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Handover:
    """A request to replace the session by a successor, and how to open it."""

    begin: Callable[[], Awaitable[ActiveSession]]
    once: bool = False
    """Whether the handover is tried only once."""
    undo: Callable[[HubLostError], Awaitable[None]] | None = None
    """Reverts `begin` if the successor does not take over, even if it was opened."""


class HubEvents(Protocol):
    """Receives the messages of a session about its hub, and opens successors."""

    async def open(self, connection: HubConnection) -> ActiveSession:
        """Open another session with the owner. Raises HubLostError."""

    def accepted(self, *, accepted: bool) -> None:
        """Called when the hub reports whether it accepts the cluster."""

    def move_requested(self, target: HubId, why: str) -> None:
        """Called when the hub requests a move to another hub."""

    def trust_hub_by(self, authorities: bytes) -> None:
        """Use these CAs to verify the hub in all further connections."""


class SessionRun:
    def __init__(
        self, active: ActiveSession, agent: AgentContext, identity: AgentIdentity, *, events: HubEvents, rotation: CSRFlow
    ) -> None:
        self._active = active
        self._agent = agent
        self._events = events
        options = agent.options
        agent.progress.hub, agent.progress.cluster = active.connection.address.target, identity.cluster
        # Beats in step help only hubs that acknowledge beats, because such a hub handles the beats of many agents together.
        acknowledges = TransportFeature.ACKNOWLEDGED_BEATS in active.client.features
        self._heartbeats = HeartbeatSender(
            active.session,
            verdict=lambda: agent.watch.verdict,
            acknowledged=agent.progress.beat,
            ack_timeout=ack_timeout(active.session.beat_interval, options.detection.silence) if acknowledges else UNANSWERED,
            random=agent.ports.random,
            latency=agent.progress.counts.acknowledgement,
            hub_clock=agent.hub_clock if acknowledges else None,
        )
        self._reporting = ClusterReports(active, agent)
        self._addons = AddOnReports(active, agent, identity)
        self._rotation = CertificateRotation(
            active.client,
            active.connection.certificate,
            rotation,
            hub_clock=agent.hub_clock,
            renewed=self._renewed,
            report=self._reporting.add_condition,
        )
        self.rotation = watched("certificate-rotation", self._rotation, agent.progress)
        self._desired: Desired | None = None
        self._handover: Handover | None = None
        self._next_handover: Handover | None = None
        self._handover_wanted = asyncio.Event()
        self._no_handover = asyncio.Event()
        """Set unless a handover is in progress."""
        self._no_handover.set()
        self._hubs_changed = asyncio.Event()

    def report_hub_list(self) -> None:
        """Send the changed hub list, at most once per HUB_LIST_PERIOD."""
        self._hubs_changed.set()

    def hand_over(self, handover: Handover) -> None:
        """Open the successor, and hand over to it after its first beat.

        During another handover, drop a handover with `once`. Keep a handover without `once` until the present handover fails.
        """
        if self._handover is None:
            self._handover = handover
            self._handover_wanted.set()
        elif not handover.once:
            self._next_handover = handover

    async def run(self) -> ActiveSession:
        """Run until the session ends. Return the successor if it took over. Raises HubLostError."""
        stop_listening = self._agent.watch.listen(self._verdict_changed)
        wakes = self._schedule()
        handover = asyncio.create_task(self._run_handovers(), name="session/handover")
        tasks = [asyncio.create_task(self._run_guarded(work), name=f"session/{name}") for name, work in self._work()]
        try:
            try:
                done, _ = await asyncio.wait((handover, *tasks), return_when=asyncio.FIRST_COMPLETED)
            finally:
                stop_listening()
                for name in wakes:
                    self._agent.ports.scheduler.drop(name)
                await cancel_and_wait(handover, *tasks)
        except asyncio.CancelledError:
            if (successor := _result(handover)) is not None:
                await successor.close()
            raise
        if (successor := _result(handover)) is not None:
            return successor
        failed = [error for each in (*done, handover, *tasks) if not each.cancelled() and (error := each.exception())]
        raise next((leaf for error in failed for leaf in _leaves(error) if isinstance(leaf, MusterError)), failed[0])

    def _work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        """Yield name and coroutine of each task of the session. A task ends only with an error or when it is cancelled."""
        features = self._active.client.features
        yield "end", self._end()
        yield "desired", self._follow_hub()
        yield "cluster", self._follow_cluster()
        yield "lease", self._heartbeats.run()
        yield "events", self._reporting.send_events()
        if TransportFeature.DRAIN in features:
            yield "drain", self._leave_when_asked()
        if TransportFeature.TRUST in features:
            callbacks = (self._events.trust_hub_by, self._addons.trust_hub_by, self._reporting.send_event)
            yield "trust", TrustBundleSync(self._agent, self._active, *callbacks).run()
        if TransportFeature.SEVERAL_HUBS in features:
            yield "hubs", self._send_hub_list()
        for controller in (*self._reporting.controllers, *self._addons.controllers, self.rotation):
            yield controller.name, controller.run()

    async def _run_guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task. If it loses the hub during a handover, raise the loss only when the handover has ended."""
        try:
            await work
        except HubLostError:
            await self._no_handover.wait()
            raise

    async def _end(self) -> None:
        raise await self._active.session.ended()

    async def _follow_hub(self) -> None:
        async with aclosing(self._active.session.desired()) as following:
            async for desired in following:
                self._take(desired)

    def _take(self, desired: Desired) -> None:
        before, self._desired = self._desired, desired
        if before is None or before.accepted != desired.accepted:
            log.info("hub.accepted" if desired.accepted else "hub.not_accepted", cluster_deleting=desired.deleting)
        if desired.second_agent and (before is None or before.second_agent != desired.second_agent):
            log.warning("agent.second_refused", message=desired.second_agent)
        self._agent.progress.lease(desired.lease_duration)
        if before is not None and desired.lease_duration < before.lease_duration:
            self._heartbeats.send_now()  # the present pause was drawn from the longer interval
        self._agent.progress.enter(REPORTING if desired.accepted else WAITING_FOR_ACCEPTANCE)
        self._events.accepted(accepted=desired.accepted)
        if self._rotation.ask(desired.renewal):
            self.rotation.enqueue(KEY)
        self._heartbeats.accept(accepted=desired.accepted)
        self._reporting.accept(desired)
        self._addons.accept(desired)

    async def _follow_cluster(self) -> None:
        changes = self._agent.ports.managed_cluster.changes()
        try:
            async for _ in changes:
                self._reporting.changed()
        finally:
            await changes.aclose()  # type: ignore[attr-defined]

    async def _leave_when_asked(self) -> None:
        while True:
            drain = await self._active.session.drained()
            if drain.target is not None:
                self._events.move_requested(drain.target, drain.reason)
                continue
            log.info("hub.drains", why=drain.reason, within_seconds=drain.reconnect_after.total_seconds())
            wait = max(drain.reconnect_after * self._agent.ports.random.random(), SOONEST_LEAVE)
            await asyncio.sleep(wait.total_seconds())
            self.hand_over(Handover(lambda: self._events.open(self._active.connection)))

    async def _send_hub_list(self) -> None:
        while True:
            await self._hubs_changed.wait()
            self._hubs_changed.clear()
            await self._active.session.report_hub_list(self._agent.hubs.listed())
            await asyncio.sleep(HUB_LIST_PERIOD.total_seconds())

    async def _run_handovers(self) -> ActiveSession:
        """Open the successor that `hand_over` requests. Return it after its first beat."""
        backoff = self._agent.options.pauses.retry.backoff(self._agent.ports.random)
        while True:
            await self._handover_wanted.wait()
            handover = self._handover
            if handover is None:
                raise AssertionError
            try:
                return await self._open_successor(handover)
            except HubLostError as error:
                log.warning("handover.failed", error=error.message, loss=error.loss.name)
                if handover.undo is not None:
                    await handover.undo(error)
            if not handover.once:
                await asyncio.sleep(backoff.next().total_seconds())
                continue
            self._handover, self._next_handover = self._next_handover, None
            if self._handover is None:
                self._handover_wanted.clear()

    async def _open_successor(self, handover: Handover) -> ActiveSession:
        """Open the successor and, if the cluster is accepted, send a beat over it.

        Raises HubLostError; the successor is closed then.
        """
        self._no_handover.clear()
        try:
            successor = await handover.begin()
            try:
                if self._desired is not None and self._desired.accepted:
                    async with asyncio.timeout(self._agent.options.detection.silence.total_seconds()):
                        await successor.session.beat(available=self._agent.watch.verdict)
            except (HubLostError, TimeoutError) as error:
                await successor.close()
                raise HubLostError(f"the successor carried no beat: {error}", SessionLoss.SILENT) from error
            except BaseException:
                await successor.close()
                raise
            return successor
        finally:
            self._no_handover.set()  # also after a cancellation, because other tasks wait for this

    def _renewed(self, contents: Contents) -> None:
        self._agent.progress.counts.renewals += 1
        connection = stored_connection(contents, self._agent.options.reach)
        self.hand_over(Handover(lambda: self._events.open(connection)))

    def _verdict_changed(self) -> None:
        self._heartbeats.send_now()
        self._reporting.changed()

    def _schedule(self) -> tuple[str, ...]:
        """Schedule the periodic resyncs and the renewal. Return the names of the scheduled entries."""
        ports, periods = self._agent.ports, {**self._reporting.resyncs, **self._addons.resyncs}
        for name, (period, resync) in periods.items():
            ports.scheduler.every(period, resync, name=name)
        until_due = self._rotation.due - self._agent.hub_clock.now()
        ports.scheduler.at(ports.clock.now() + until_due, lambda: self.rotation.enqueue(KEY), name="certificate-rotation")
        self.rotation.enqueue(KEY)
        return (*periods, "certificate-rotation")


def _result(handover: "asyncio.Task[ActiveSession]") -> ActiveSession | None:
    return None if handover.cancelled() or handover.exception() else handover.result()


def _leaves(error: BaseException) -> Iterable[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return (error,)
    return (leaf for each in error.exceptions for leaf in _leaves(each))
