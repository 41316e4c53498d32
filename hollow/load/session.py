"""One open session of a simulated agent: beats, reports, add-ons, drain, renewal and CA bundles, as in a real agent."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import KW_ONLY, dataclass, field
from random import Random
from typing import Protocol

from hollow.load.report import Measures
from hollow.objects import KUBERNETES_VERSION
from machinery.errors import MusterError
from machinery.identity import AddOnName
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import wait_at_most
from machinery.runtime.tasks import cancel_and_wait, first_error
from spoke.credentials.kubeconfigs import HubConnection
from spoke.credentials.trust_bundle import fingerprints
from spoke.domain.addon import CUSTOMIZED, lease_condition
from spoke.domain.next_step import SessionLoss
from spoke.domain.report import (
    AVAILABLE_CONDITION,
    JOINED_CONDITION,
    ClusterReport,
    NamespaceReport,
    ReportedClaim,
    namespace_applied_condition,
)
from spoke.domain.schedule import SILENCE, RenewalTime, ack_timeout, pause
from spoke.options import AgentOptions, Pauses
from spoke.ports.cluster import Secrets
from spoke.ports.hub import Desired, Dial, HubClient, HubLostError
from spoke.session.reports import CHECKS_PER_REPORT
from spoke.session.runner import SOONEST_LEAVE
from spoke.transports import OpenSession

RESYNC = AgentOptions().resync.total_seconds() * CHECKS_PER_REPORT
"""An unchanged status is reported again after this many seconds."""
CLAIMS = (
    ReportedClaim("platform.open-cluster-management.io", "Hollow"),
    ReportedClaim("product.open-cluster-management.io", "Hollow"),
)
FEWEST_NODES, MOST_NODES = 3, 100
OPENING_AT_ONCE = 100
"""Number of sessions that one process opens at the same time. Real agents have processors of their own: without this limit,
thousands of simulated agents that connect together would get no processor time before their time-outs."""


@dataclass(slots=True)
class AgentParts:
    hub: HubConnection
    """The hub of the bootstrap kubeconfig."""
    dialer: Callable[[], Dial]
    """Returns a new function with which one agent creates its clients of the hub."""
    secrets: Secrets
    clock: Clock
    random: Random
    change_period: float | None = None
    """Mean seconds between two changes of a cluster's status; None if it does not change."""
    measures: Measures = field(default_factory=Measures)
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPENING_AT_ONCE))
    states: Counter[str] = field(default_factory=Counter)
    """Number of agents with an open session (`open`), and with an acknowledged beat (`ready`)."""


@dataclass(slots=True)
class BeatState:
    """The state of an agent's beats and status. It survives the end of a session."""

    due: float | None = None
    """Time of the event loop at which the next beat is due; None: no beat is due."""
    is_ready: bool = False
    nodes: int = FEWEST_NODES


@dataclass(frozen=True, slots=True)
class SessionConnection:
    """An open session and its client. Closing the exit stack `connection` closes the session and its channel."""

    client: HubClient
    session: OpenSession
    connection: AsyncExitStack


class SessionOwner(Protocol):
    async def open_session(self) -> "LoadSession": ...
    async def renew(self, client: HubClient) -> None: ...
    async def trust(self, bundle: bytes) -> None: ...


@dataclass(eq=False)
class LoadSession:
    """One session. `serve` runs it until its end.

    `is_dropped`: the load itself has broken the session. `has_beaten`: a beat was acknowledged.
    """

    link: SessionConnection
    parts: AgentParts
    beats: BeatState
    _: KW_ONLY
    renewal: RenewalTime
    hub_clock: Clock
    owner: SessionOwner

    def __post_init__(self) -> None:
        self.is_dropped = self.has_beaten = False
        self._session = self.link.session
        self._ack_timeout = ack_timeout(self.link.session.beat_interval, SILENCE).total_seconds()
        self._desired: Desired | None = None
        self._accepted = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._report_now = asyncio.Event()
        self._renewal_moved = asyncio.Event()
        self._healthy: set[AddOnName] = set()
        """The add-ons that were reported as available."""
        self._succession = asyncio.Lock()
        """Held while the successor is being opened, because the result decides what the end of this session means."""

    def drop(self) -> None:
        """End the session as if its connection had broken."""
        self.is_dropped = True
        self._session.finish(HubLostError("the load has broken the connection"))

    async def serve(self) -> "LoadSession":
        """Run this session until a new session of the agent takes over. Return the new session. Raises HubLostError."""
        successions = [asyncio.create_task(each, name="load/succession") for each in (self._drain(), self._renew())]
        work = (self._end(), self._follow_hub(), self._keep_lease(), self._report(), self._follow_trust())
        tasks = [asyncio.create_task(each, name="load/session") for each in work]
        self.parts.states["open"] += 1
        try:
            done, _ = await asyncio.wait((*successions, *tasks), return_when=asyncio.FIRST_COMPLETED)
            async with self._succession:  # the hub ends this session when the successor is open
                pass
        finally:
            self.parts.states["open"] -= 1
            await cancel_and_wait(*successions, *tasks)
            successors = [each.result() for each in successions if not each.cancelled() and not each.exception()]
            for further in successors[1:]:
                await further.close()
            await self.close()
        if successors:
            return successors[0]
        raise next(error for each in done if (error := each.exception()) is not None)

    async def close(self) -> None:
        await self.link.connection.aclose()

    async def _end(self) -> None:
        raise await self._session.ended()

    async def _follow_hub(self) -> None:
        async with aclosing(self._session.desired()) as following:
            async for desired in following:
                before, self._desired = self._desired, desired
                if not desired.accepted:
                    self._accepted.clear()
                    self.beats.due = None
                elif not self._accepted.is_set():
                    self._accepted.set()
                    self._beat_now.set()
                    self._report_now.set()
                elif before is not None and desired.lease_duration < before.lease_duration:
                    self._beat_now.set()
                if before is not None and before.namespaces != desired.namespaces:
                    self._report_now.set()
                if desired.renewal is not None and self.renewal.ask(desired.renewal.within, self.hub_clock.now()):
                    self._renewal_moved.set()
                await self._report_addons(desired)

    async def _keep_lease(self) -> None:
        """Send beats. If a beat was due while there was no session, send it now; its latency begins when it was due."""
        loop, beats = asyncio.get_running_loop(), self.beats
        try:
            async with asyncio.TaskGroup() as under_way:
                while True:
                    await self._accepted.wait()
                    self._beat_now.clear()
                    now, interval = loop.time(), self._session.beat_interval.total_seconds()
                    due = min(now, beats.due if beats.due is not None else now)
                    missed = int((now - due) / interval)
                    self.parts.measures.counts["beats_lost"] += missed
                    under_way.create_task(self._beat(due + missed * interval), name="load/beat")
                    until_next = pause(self._session.beat_interval, self.parts.random.random(), self.hub_clock.now())
                    beats.due = now + until_next.total_seconds()
                    await wait_at_most(self._beat_now, until_next.total_seconds())
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _beat(self, due: float) -> None:
        loop, measures = asyncio.get_running_loop(), self.parts.measures
        measures.counts["beats"] += 1
        try:
            async with asyncio.timeout(self._ack_timeout):
                await self._session.beat(available=True)
        except TimeoutError:
            if not self._accepted.is_set():
                return  # the hub does not acknowledge beats of a cluster that it no longer accepts
            measures.counts["beats_lost"] += 1
            raise HubLostError(f"the hub has not acknowledged a beat for {self._ack_timeout:g} s", SessionLoss.SILENT) from None
        except HubLostError:
            measures.counts["beats_lost"] += not (self.is_dropped or self._succession.locked())
            raise
        self.has_beaten = True
        measures.counts["beats_acknowledged"] += 1
        measures.observe("beat", loop.time() - due)
        if not self.beats.is_ready:
            self.beats.is_ready = True
            self.parts.states["ready"] += 1

    async def _report(self) -> None:
        """Report the status after the hub has accepted the cluster, at each change, and at each resync."""
        loop, random = asyncio.get_running_loop(), self.parts.random
        period = self.parts.change_period
        change = loop.time() + random.uniform(0, 2 * period) if period is not None else float("inf")
        while True:
            await self._accepted.wait()
            self._report_now.clear()
            due = loop.time()
            if period is not None and due >= change:
                self.beats.nodes = FEWEST_NODES + (self.beats.nodes + 1 - FEWEST_NODES) % MOST_NODES
                self.parts.measures.counts["changes"] += 1
                due, change = change, change + random.uniform(0.5, 1.5) * period
            await self._send_status(due)
            await wait_at_most(self._report_now, min(due + RESYNC, change) - loop.time())

    async def _send_status(self, due: float) -> None:
        nodes, measures = self.beats.nodes, self.parts.measures
        wanted = self._desired.namespaces if self._desired is not None else ()
        resources = {"cpu": str(8 * nodes), "memory": f"{32 * nodes}Gi", "pods": str(110 * nodes)}
        report = ClusterReport(
            conditions=(JOINED_CONDITION, AVAILABLE_CONDITION),
            complete=True,
            capacity=resources,
            allocatable=resources,
            kubernetes_version=KUBERNETES_VERSION,
            claims=CLAIMS,
            node_count=nodes,
            namespaces=tuple(NamespaceReport(each, namespace_applied_condition(each.name)) for each in wanted),
        )
        measures.counts["reports"] += 1
        try:
            await self._session.report(report)
        except HubLostError:
            raise
        except MusterError as error:
            measures.fail(f"report: {error.reason}", error.message)
        else:
            measures.observe("report", asyncio.get_running_loop().time() - due)

    async def _report_addons(self, desired: Desired) -> None:
        """Report add-ons whose availability depends on a Lease as available, once per session."""
        if not desired.accepted or not desired.addons_known:
            return
        self._healthy &= {addon.name for addon in desired.addons}
        now = self.hub_clock.now()
        for addon in desired.addons:
            if addon.name in self._healthy or addon.deleting or addon.health_check_mode == CUSTOMIZED:
                continue
            self._healthy.add(addon.name)
            try:
                await self._session.report_addon(addon.name, (lease_condition(addon, now, now),))
            except HubLostError:
                raise
            except MusterError as error:
                self.parts.measures.fail(f"add-on: {error.reason}", error.message)

    async def _drain(self) -> "LoadSession":
        """Hand over to a successor when the hub drains. Ignore a request to move, because there is only one hub."""
        while True:
            drain = await self._session.drained()
            if drain.target is None:
                break
        self.parts.measures.counts["drains"] += 1
        wait = max(drain.reconnect_after * self.parts.random.random(), SOONEST_LEAVE)
        await asyncio.sleep(wait.total_seconds())
        return await self._succeed()

    async def _renew(self) -> "LoadSession":
        pauses = Pauses().denied.backoff(self.parts.random)
        while True:
            left = self.renewal.due - self.hub_clock.now()
            if await wait_at_most(self._renewal_moved, left.total_seconds()):
                self._renewal_moved.clear()
                continue
            try:
                await self.owner.renew(self.link.client)
            except MusterError as error:
                self.parts.measures.fail(f"renewal: {error.reason}", error.message)
                await asyncio.sleep(pauses.next().total_seconds())
            else:
                return await self._succeed()

    async def _succeed(self) -> "LoadSession":
        """Open the successor and send a beat over it, like `spoke.session.runner`. Retry after a failure."""
        pauses = Pauses().retry.backoff(self.parts.random)
        while True:
            try:
                async with self._succession:
                    successor = await self.owner.open_session()
                    await successor.send_first_beat(accepted=self._accepted.is_set())
                    return successor
            except HubLostError as lost:
                self.parts.measures.fail(f"successor: {lost.loss.name.lower()}", lost.message)
            await asyncio.sleep(pauses.next().total_seconds())

    async def send_first_beat(self, *, accepted: bool) -> None:
        """Send the first beat if the cluster is accepted. After a failure, close the session and raise HubLostError."""
        try:
            if accepted:
                async with asyncio.timeout(SILENCE.total_seconds()):
                    await self._session.beat(available=True)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise HubLostError("the successor carried no beat", SessionLoss.SILENT) from error
            raise

    async def _follow_trust(self) -> None:
        while True:
            bundle = await self._session.trust_bundle()
            await self.owner.trust(bundle)
            await self._session.trust_installed(fingerprints(bundle))
