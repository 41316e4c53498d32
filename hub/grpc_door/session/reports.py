"""Stores the messages of an agent other than beats: reports of its status and add-ons, its hub list, and events.

One task stores these messages in order, so that beats do not wait for them. It stores them only while the session's epoch is
the newest. The hub acknowledges a report when the report is durable or permanently refused. Every agent repeats its status each
minute. While the cluster is unchanged, the hub acknowledges a repeated status without a database access. Events are created in
the cluster's namespace at a limited rate and without an answer; Events above the rate are dropped, with one log line.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from typing import Any

import structlog

from hub.api.events import NORMAL, WARNING
from hub.api.managedclusters.availability import Departure
from hub.grpc_door.messages import conditions_of, decode_report, hubs_of
from hub.grpc_door.session.calls import RpcCall, SessionAudit
from hub.heartbeat import BeatSink
from hub.ports import Store, Transaction
from hub.registry import events, owners
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.apiserver.http.limits import Rates
from machinery.errors import ConflictError, DeadlineError, MusterError, StaleEpochError, TooManyRequestsError, UnavailableError
from machinery.identity import AddOnName, ClusterName, HubId
from machinery.observability import tracing
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import Clock
from machinery.wire.session.v1 import session_pb2 as wire

RETRIES = 5
REPORT_TIMEOUT = timedelta(seconds=4)
"""An attempt to store a report waits for a seat of its priority level for at most a quarter of this time."""
TRANSIENT = (UnavailableError, ConflictError, DeadlineError)
EVENT_BURST = 10
EVENT_PERIOD = 6.0
"""Seconds after which one more Event of a session is permitted, when EVENT_BURST Events are used up."""
MAX_MESSAGE = 1024
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,127}")
_TYPES = (NORMAL, WARNING)
MAX_QUEUED = 16
MAX_QUEUED_BYTES = 1024 * 1024
"""Bounds of a ReportQueue: number and bytes of its messages. An empty queue also accepts a larger message."""

log = structlog.get_logger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]


class ReportQueue:
    """Runs work in order, in a task of `tasks` that exists only while there is work. Calls `fail` with the first error."""

    def __init__(self, tasks: asyncio.TaskGroup, fail: Callable[[Exception], None]) -> None:
        self._tasks = tasks
        self._fail = fail
        self._waiting: list[tuple[Work, int]] = []
        self._worker: asyncio.Task[None] | None = None
        self._space: asyncio.Event | None = None
        """Set when the queue may have space again. An Event takes 0.7 KiB, so it is created only when the queue is full."""

    def __len__(self) -> int:
        """Number of items that wait or are in progress."""
        return len(self._waiting)

    async def put(self, work: Work, size: int) -> None:
        """Adds work; waits while the queue is full. `size`: bytes of the message that the work stores."""
        while self._waiting and (
            len(self._waiting) >= MAX_QUEUED or sum(each for _, each in self._waiting) + size > MAX_QUEUED_BYTES
        ):
            self._space = self._space or asyncio.Event()
            self._space.clear()
            await self._space.wait()
        self._waiting.append((work, size))
        if self._worker is None:
            self._worker = self._tasks.create_task(self._work())

    async def done(self) -> None:
        """Waits until the queue is empty and no work is in progress."""
        while self._worker is not None:
            await asyncio.wait({self._worker})

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._waiting[0][0]()
                del self._waiting[0]
                if self._space is not None:
                    self._space.set()
        except Exception as error:  # noqa: BLE001 - it becomes the stream's status
            self._waiting.clear()
            self._fail(error)
        finally:
            self._worker = None


class AgentEvents:
    """Stores the Events that the agent sends in one session."""

    def __init__(self, store: Store, clock: Clock, cluster: ClusterName, actor: str) -> None:
        self._store = store
        self._cluster = cluster
        self._actor = actor
        self._rate = Rates(1 / EVENT_PERIOD, EVENT_BURST, clock)
        self._dropped = 0

    async def take(self, message: wire.Event) -> None:
        """Stores the Event if it is valid and within the session's rate; else drops it. It is also lost if its write fails."""
        is_valid = message.type in _TYPES and _REASON.fullmatch(message.reason) is not None
        if not is_valid or not self._rate.has_room(self._cluster):
            self._dropped += 1
            if self._dropped == 1:
                log.warning("an agent's event is dropped", cluster=self._cluster, reason=message.reason[:80])
            return
        self._rate.check(self._cluster)
        self._dropped = 0
        content = message.type, message.reason, message.message[:MAX_MESSAGE]
        try:
            await self._store.run(events.record_agent_event, self._cluster, message.addon_name, content, self._actor)
        except MusterError as error:
            log.info("an agent's event is lost", cluster=self._cluster, reason=message.reason, error=error.message)


class SessionReports:
    """Stores the reports of one session."""

    def __init__(self, call: RpcCall, audit: SessionAudit, cluster: ClusterName, epoch: int, agent_version: str) -> None:
        self._parts = call.parts
        self._caller = call.actor
        self._actor = call.actor.user
        self._audit = audit
        self._cluster = cluster
        self._epoch = epoch
        self._agent_version = agent_version
        self._attributes = audit.asked
        self._events: AgentEvents | None = None
        self.known_hubs = ""
        """The agent's hub list, as stored in the database."""
        self._stored_status: tuple[bytes, int] | None = None
        """Digest and revision of the stored status; None if the cluster has changed since."""
        self._changes = 0
        self.leaving: asyncio.Task[None] | None = None
        """The task that records the agent's next hub; None: the agent has not announced that it leaves."""

    async def store(self, kind: str, message: Any) -> wire.ReportAck | None:
        """Stores a message of the kind "status", "addon", "hubs" or "event". Reports continue the agent's trace.

        Returns the acknowledgement of a status or add-on report; after a permanent error, it contains this error. Returns None
        for other kinds. Raises transient errors and StaleEpochError.
        """
        if kind == "event":
            self._events = self._events or AgentEvents(self._parts.store, self._parts.clock, self._cluster, self._actor)
            await self._events.take(message)
            return None
        if kind == "hubs":
            await self._hubs(message)
            return None
        ack = wire.ReportAck(sequence=message.sequence)
        trace = {tracing.TRACEPARENT: message.traceparent}
        try:
            with tracing.serving(f"report {kind}", trace.get, {"muster.cluster": self._cluster}):
                ack.revision = await (self._status(message) if kind == "status" else self._addon(message))
        except MusterError as error:
            if isinstance(error, (*TRANSIENT, StaleEpochError)):
                raise
            ack.reason, ack.message = error.reason, error.message
        return ack

    def cluster_changed(self) -> None:
        """Makes sure that the next status report is stored: a change of the cluster may have overwritten the stored status."""
        self._stored_status = None
        self._changes += 1

    async def _status(self, message: wire.StatusReport) -> int:
        digest, changes = _digest(message), self._changes
        if self._stored_status is not None and self._stored_status[0] == digest and not self._audit.statuses:
            return self._stored_status[1]
        with self._audit.status():
            revision = await self._write(clusters.report_status, decode_report(message, self._agent_version))
        self._stored_status = (digest, revision) if changes == self._changes else None
        return revision

    async def _addon(self, message: wire.AddOnReport) -> int:
        report = partial(addons.report, driver=message.kube_client_driver)
        with self._audit.addon(message.addon_name):
            return await self._write(report, AddOnName(message.addon_name), conditions_of(message.conditions))

    async def _hubs(self, message: wire.Hubs) -> None:
        """Stores the agent's hub list if it has changed. It is informational: a failure does not end the session."""
        hubs = hubs_of(message)
        if hubs == self.known_hubs:
            return
        try:
            await self._retry(owners.report_hubs, self._cluster, self._epoch, hubs, self._actor)
        except (*TRANSIENT, TooManyRequestsError) as error:
            log.info("an agent's list of hubs is not stored", cluster=self._cluster, error=error.message)

    async def farewell(self, message: wire.Farewell, session: BeatSink) -> None:
        """Records the agent's next hub, if it is another hub, and drops the waiting beat. The write survives cancellation."""
        if not message.hub_id or message.hub_id == self._parts.hub_id:
            return
        self._parts.beats.drop(self._cluster, session)
        departure = Departure(self._cluster, HubId(message.hub_id), message.epoch)
        writing = self._retry(partial(owners.record_handover, actor=self._actor), departure, session.epoch)
        self.leaving = asyncio.create_task(writing, name=f"farewell {self._cluster}")
        await asyncio.shield(self.leaving)

    async def _write(self, report: Callable[..., Any], *content: Any) -> int:
        """Writes a report and returns its revision. Raises StaleEpochError if the session's epoch is no longer the newest."""

        def fenced(tx: Transaction) -> Any:
            owners.check(tx, self._cluster, self._epoch)
            return report(tx, self._cluster, *content, self._actor)

        written = await self._retry(fenced)
        return int(getattr(written, "stored", written).revision)

    async def _retry(self, use_case: Callable[..., Any], *args: Any) -> Any:
        pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=2))
        while True:
            try:
                async with self._parts.limits.seat(self._caller, self._attributes, time_left=REPORT_TIMEOUT):
                    return await self._parts.store.run(use_case, *args)
            except (*TRANSIENT, TooManyRequestsError):
                if pauses.failures >= RETRIES:
                    raise
                await asyncio.sleep(pauses.next().total_seconds())


def _digest(message: wire.StatusReport) -> bytes:
    """Returns a digest of the cluster's state in a report."""
    content = wire.StatusReport()
    content.CopyFrom(message)
    for field in ("sequence", "agent_time", "traceparent"):
        content.ClearField(field)
    return blake2b(content.SerializeToString(deterministic=True), digest_size=16).digest()
