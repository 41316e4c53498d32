"""What an agent sends beside beats: reports of its status and add-ons, its hub list, and events.

They are handled in their order by one task, so that beats do not wait for them, and only while the session's epoch is the
newest. A report is acknowledged once it is durable, or with a permanent refusal. Events are created in the cluster's namespace
at a limited rate and without an answer; the ones above the rate are dropped, with one log line.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from hub.api import events as rules
from hub.api.certificates import CertificateRecord
from hub.api.managedclusters.availability import Departure
from hub.grpc_door.calls import CallAttributes
from hub.grpc_door.messages import conditions_of, hubs_of, report_of
from hub.grpc_door.session.interceptor import RpcCall, SessionAudit
from hub.heartbeat import BeatSink
from hub.ports import Store, Transaction
from hub.registry import events, owners
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.errors import ConflictError, DeadlineError, MusterError, StaleEpochError, TooManyRequestsError, UnavailableError
from machinery.identity import AddOnName, ClusterName, HubId
from machinery.observability import tracing
from machinery.runtime.backoff import Backoff
from machinery.wire.session.v1 import session_pb2 as wire

RETRIES = 5
REPORT_HAS = timedelta(seconds=4)
"""Each attempt waits for its seat for at most a quarter of this."""
TRANSIENT = (UnavailableError, ConflictError, DeadlineError)
AT_ONCE = 10
EVERY = 6.0
"""Seconds until one more is permitted."""
MAX_MESSAGE = 1024
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,127}")
_TYPES = (rules.NORMAL, rules.WARNING)
MAX_QUEUED = 16
MAX_QUEUED_BYTES = 1024 * 1024
"""Bounds of the queue; a single larger message is accepted when the queue is empty."""

log = structlog.get_logger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]
Write = Callable[[Transaction], Any]


class ReportQueue:
    """Runs work in order, in a task that exists only while there is work. Calls `fail` with the first error."""

    def __init__(self, name: str, fail: Callable[[Exception], None]) -> None:
        self._name = name
        self._fail = fail
        self._waiting: list[tuple[Work, int]] = []
        self._worker: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """Number of items that wait or are in progress."""
        return len(self._waiting)

    async def put(self, work: Work, size: int) -> None:
        """Adds work; waits while the queue is full. `size`: its bytes."""
        while self._is_full(size):
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        self._waiting.append((work, size))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name=self._name)

    async def done(self) -> None:
        """Returns when the queue is empty."""
        while self._worker is not None:
            await asyncio.wait({self._worker})

    def end(self) -> None:
        """Cancels the work."""
        if self._worker is not None:
            self._worker.cancel()

    def _is_full(self, size: int) -> bool:
        waiting = len(self._waiting)
        return bool(waiting) and (waiting >= MAX_QUEUED or sum(each for _, each in self._waiting) + size > MAX_QUEUED_BYTES)

    async def _work(self) -> None:
        try:
            while self._waiting:
                work, _ = self._waiting[0]
                await work()
                del self._waiting[0]
                self._make_room()
        except Exception as error:  # noqa: BLE001 - whoever has it is told, whatever it is
            self._waiting.clear()
            self._fail(error)
        finally:
            self._worker = None

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


class AgentEvents:
    """Events of one session."""

    def __init__(self, store: Store, cluster: ClusterName, actor: str) -> None:
        self._store = store
        self._cluster = cluster
        self._actor = actor
        self._left = float(AT_ONCE)
        self._looked = asyncio.get_running_loop().time()
        self._dropped = 0

    async def take(self, message: wire.Event) -> None:
        """Stores a valid event within the rate. If the store cannot be written, the event is lost: it is not a report."""
        if message.type not in _TYPES or _REASON.fullmatch(message.reason) is None or not self._room():
            self._dropped += 1
            if self._dropped == 1:
                log.warning("an agent's event is dropped", cluster=self._cluster, reason=message.reason[:80])
            return
        self._dropped = 0
        said = message.message[:MAX_MESSAGE]
        try:
            await self._store.run(
                events.record_agent_event, self._cluster, message.addon_name, (message.type, message.reason, said), self._actor
            )
        except MusterError as error:
            log.info("an agent's event is lost", cluster=self._cluster, reason=message.reason, error=error.message)

    def _room(self) -> bool:
        now = asyncio.get_running_loop().time()
        self._left = min(self._left + (now - self._looked) / EVERY, AT_ONCE)
        self._looked = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class SessionReports:
    """Reports of one session. `send` sends a message to the agent; `fail` ends the session with an error."""

    def __init__(
        self,
        call: RpcCall,
        record: CertificateRecord,
        cluster: ClusterName,
        audit: SessionAudit,
        *,
        send: Callable[[wire.HubMessage], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._parts = call.parts
        self._actor = record.user
        self._caller = call.actor
        self._cluster = cluster
        self._audit = audit
        self._send = send
        self._asked = CallAttributes(call.parts.group_suffix).status(cluster)
        self._events = AgentEvents(call.parts.store, cluster, record.user)
        self.queue = ReportQueue(f"session {cluster} reports", fail)
        self.epoch = 0
        self.agent_version = ""
        self.known_hubs = ""
        """The agent's hub list as the store has it."""
        self.leaving: asyncio.Task[None] | None = None
        """Records where the agent goes; None: it has not said that it leaves."""
        self._handlers: Mapping[str, Callable[[Any], Coroutine[Any, Any, None]]] = {
            "status": self._status,
            "addon": self._addon,
            "hubs": self._hubs,
            "event": self._events.take,
        }

    async def put(self, kind: str | None, message: Any, size: int) -> None:
        """Queue a message of `size` bytes; wait while the queue is full. Unknown kinds are ignored."""
        handler = self._handlers.get(kind or "")
        if handler is not None:
            await self.queue.put(partial(handler, message), size)

    async def _status(self, message: wire.StatusReport) -> None:
        async def store() -> int:
            report = report_of(message, self.agent_version)
            return await self._written(lambda tx: clusters.report_status(tx, self._cluster, report, self._actor))

        await self._acknowledge("report status", message, partial(self._audit.status, store))

    async def _addon(self, message: wire.AddOnReport) -> None:
        async def store() -> int:
            name, found = AddOnName(message.addon_name), conditions_of(message.conditions)
            report = partial(addons.report, driver=message.kube_client_driver)
            return await self._written(lambda tx: report(tx, self._cluster, name, found, self._actor))

        await self._acknowledge("report addon", message, partial(self._audit.addon, message.addon_name, store))

    async def _acknowledge(
        self, name: str, message: wire.StatusReport | wire.AddOnReport, store: Callable[[], Awaitable[int]]
    ) -> None:
        """Store a report within the agent's trace, if it carries one, and acknowledge it. Raises transient errors."""
        ack = wire.ReportAck(sequence=message.sequence)
        try:
            with tracing.serving(name, {tracing.TRACEPARENT: message.traceparent}.get, {"muster.cluster": self._cluster}):
                ack.revision = await store()
        except MusterError as error:
            if isinstance(error, (*TRANSIENT, StaleEpochError)):
                raise
            ack.reason, ack.message = error.reason, error.message
        self._send(wire.HubMessage(report_ack=ack))

    async def _hubs(self, message: wire.Hubs) -> None:
        """Store the agent's hub list if it has changed. It is informational: a failure does not end the session."""
        hubs = hubs_of(message)
        if hubs == self.known_hubs:
            return
        try:
            await self._retried(lambda: self._parts.store.run(owners.report_hubs, self._cluster, self.epoch, hubs, self._actor))
        except (*TRANSIENT, TooManyRequestsError) as error:
            log.info("an agent's list of hubs is not kept", cluster=self._cluster, error=error.message)

    async def farewell(self, message: wire.Farewell, session: BeatSink) -> None:
        """Record where the agent goes and drop its waiting beat. The write continues even if the agent does not wait."""
        await self.queue.done()
        if not message.hub_id or message.hub_id == self._parts.hub.hub_id:
            return
        self._parts.beats.drop(self._cluster, session)
        departure = Departure(self._cluster, HubId(message.hub_id), message.epoch)
        leave = partial(owners.record_handover, actor=self._actor)
        writing = self._retried(lambda: self._parts.store.run(leave, departure, session.epoch))
        self.leaving = asyncio.create_task(writing, name=f"farewell {self._cluster}")
        await asyncio.shield(self.leaving)

    async def _written(self, write: Write) -> int:
        """Write within the epoch. Returns the revision."""

        def fenced(tx: Transaction) -> Any:
            owners.check(tx, self._cluster, self.epoch)
            return write(tx)

        written = await self._retried(lambda: self._parts.store.run(fenced))
        return int(getattr(written, "stored", written).revision)

    async def _retried(self, run: Callable[[], Awaitable[Any]]) -> Any:
        pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=2))
        while True:
            try:
                async with self._parts.limits.seat(self._caller, self._asked, has=REPORT_HAS):
                    return await run()
            except (*TRANSIENT, TooManyRequestsError):
                if pauses.failures >= RETRIES:
                    raise
                await asyncio.sleep(pauses.next().total_seconds())
