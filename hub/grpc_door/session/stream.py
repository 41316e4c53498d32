"""One agent's session stream, from Hello to its end.

The session reads, writes and decodes raw bytes: a heartbeat costs one read, and its acknowledgement one write. The handler's
task reads. A second task writes; it exists only while there are messages to write. If a peer does not read, only this second
task waits for the peer. A third task stores reports, so that beats do not wait for them. `end` ends the session with the status
of an error.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from secrets import token_hex
from typing import Any, NoReturn

from google.protobuf.message import DecodeError
from grpc import aio

from hub.access.rules import session_holder
from hub.api.certificateauthorities.authority import checked_fingerprints
from hub.api.certificates import CertificateRecord
from hub.api.managedclusters.agent_annotations import RenewalOrder, sound_version
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.grpc_door.messages import AVAILABLE, SessionClusterView, read_view
from hub.grpc_door.session.acknowledgements import Acknowledgements
from hub.grpc_door.session.admission import admit, welcome
from hub.grpc_door.session.calls import RpcCall, SessionAudit
from hub.grpc_door.session.drain import Aging
from hub.grpc_door.session.reports import TRANSIENT, ReportQueue, SessionReports
from hub.grpc_door.session.trust_bundle_push import TrustBundleReceiver
from hub.heartbeat import BeatSink, PendingBeat
from hub.registry import owners
from machinery.errors import BadRequestError, DenialCause, StaleEpochError, TooManyRequestsError, UnauthorizedError
from machinery.runtime.backoff import Backoff
from machinery.wire.session.v1 import session_pb2 as wire

MAX_UNSENT = 1_000
LAST_MESSAGES = timedelta(seconds=1)
"""How long an ended session waits for its unsent messages."""
START_TIME = timedelta(seconds=16)
"""Time limit of a session's start. The wait for a seat of its level is at most a quarter: agents wait 5 s for Welcome."""
MOVE_REASON = "an operator moves this cluster to another hub"


class Session(BeatSink, TrustBundleReceiver):
    """The session of an agent that has sent `hello`. `serve` runs it until it ends.

    Data for the start only (Hello, the certificate, messages, audit records) is not kept: there are thousands of sessions.
    """

    __slots__ = (
        *("id", "cluster", "agent", "serial", "agent_version", "epoch", "trusted", "acks", "_parts", "_call", "_context"),
        *("_hello", "_record", "_view", "_silent", "_last_beat", "_tasks", "_unsent", "_writer", "_writers", "_is_over"),
        *("_stale", "_is_refreshing", "_loop", "_now", "_audit", "_reports", "_renewal", "_ready_hubs", "_moves_to"),
    )

    def __init__(self, call: RpcCall, record: CertificateRecord, hello: wire.Hello) -> None:
        self.id = token_hex(16)
        self.cluster, self.agent = session_holder(record)
        self.serial = record.serial
        self._hello = hello
        self.agent_version, self.epoch = sound_version(hello.agent_version), hello.epoch
        self.trusted: frozenset[str] | None = None
        self._parts = call.parts
        self._call = call
        self._context = call.context
        self._record = record
        self._view: SessionClusterView | None = None
        self._silent = False
        self._last_beat: PendingBeat | None = None
        self._tasks: asyncio.TaskGroup | None = None
        """The tasks of the open session."""
        self._unsent: list[bytes] = []
        self._writer: asyncio.Task[None] | None = None
        self._is_over = False
        """Whether the session has ended, so that nothing more is written."""
        self._stale = self._is_refreshing = False
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self.acks = Acknowledgements(self._parts.beat_rate, timedelta(seconds=hello.ack_timeout_seconds))
        self._audit = SessionAudit(call, self.cluster)
        self._reports = SessionReports(call, self._audit, self.cluster, self.epoch, self.agent_version)
        self._renewal: tuple[RenewalOrder | None, bool] = (None, False)
        """Last sent to the agent: the operator's order to renew, and whether the CA of the agent's certificate is Outgoing."""
        self._ready_hubs: frozenset[str] = frozenset()
        self._moves_to = ""

    async def serve(self) -> None:
        """Runs the session until the agent leaves. Raises the error that ends it.

        All tasks end with the session, except two. The writer continues for at most LAST_MESSAGES, so that the agent gets
        queued messages. The write of a farewell continues until it ends.
        """
        failure: Exception | None = None
        async with asyncio.TaskGroup() as self._writers:
            try:
                async with asyncio.TaskGroup() as tasks:
                    self._tasks = tasks
                    await self._run(ReportQueue(tasks, self.end))
            except ExceptionGroup as errors:
                failure = errors.exceptions[0]  # the first one, which cancels the other tasks
                errors.__traceback__ = None  # else it would keep the session until a full garbage collection
            finally:
                self._write_soon()
                last = {task for task in (self._writer, self._reports.leaving) if task is not None}
                try:
                    await asyncio.wait(last, timeout=LAST_MESSAGES.total_seconds())
                finally:
                    self._is_over = True  # a beat that is stored later starts no writer
                    if self._writer is not None:
                        self._writer.cancel()
        if failure is not None:
            raise failure

    async def _run(self, queue: ReportQueue) -> None:
        """Starts the session, and reads until the agent leaves."""
        parts = self._parts
        expiry = self._loop.call_later((self._record.not_after - parts.clock.now()).total_seconds(), self._expire)
        try:
            with Aging(parts.age, self), parts.feed.subscribe(MANAGED_CLUSTERS, self.cluster, self.reconsider):
                await self._start(queue)
                await self._read(queue)
        finally:
            self._tasks = None  # a group of tasks that ends accepts no further one
            self._last_beat = None  # its sink is this session
            expiry.cancel()
            parts.trust_push.leave(self)
            parts.sessions.remove(self)

    async def _start(self, queue: ReportQueue) -> None:
        """Admits the session, and sends Welcome and the desired state."""
        parts, hello, received = self._parts, self._hello, self._parts.clock.now()
        async with self._call.seat(has=START_TIME):
            view = await admit(parts, self.cluster, self.agent, hello)
        # a second check: revocations end only sessions that were added. No await between this and `add`
        await parts.peers.identify(self._call.shown)
        self.acks.set_lease(view.lease_duration)
        parts.gate.check()  # a drain that has begun does not include this session
        parts.cordon.check()
        parts.sessions.add(self)
        self._send(welcome(parts, self.id, self.acks.interval))
        self._apply(view)
        if self._stale:
            self.reconsider()
        if (entry := self._call.opened()) is not None:
            parts.sessions.write_with(entry)
        if hello.HasField("hubs"):
            await self._queue_report(queue, "hubs", hello.hubs, hello.ByteSize())
        parts.clocks.compare(self.cluster, hello, received, accepted=view.accepted)
        self._note_trust(hello.trusted_authorities)
        self._call.shown = b""
        del self._hello

    def _expire(self) -> None:
        message = "the certificate of this stream has expired"
        self.end(UnauthorizedError(message, causes=DenialCause.CERTIFICATE_EXPIRED.because(message)))

    def end(self, error: Exception) -> None:
        """Ends the session with `error`, unless it has ended. An error that is no MusterError becomes an internal error."""
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            tasks.create_task(_fail(error))

    async def _read(self, queue: ReportQueue) -> None:
        read, end = self._context.read, aio.EOF
        while (raw := await read()) is not end:
            try:
                message = wire.AgentMessage.FromString(raw)
            except DecodeError:
                raise BadRequestError("a message on the session stream cannot be decoded") from None
            match kind := message.WhichOneof("message"):
                case "beat" if self._view is not None and self._view.accepted:
                    self._hold(message.beat)
                case "beat":
                    if self._audit.beats:
                        self._audit.unstored_beat()
                case "farewell":
                    await queue.done()
                    await self._reports.farewell(message.farewell, self)
                    return
                case "trust_installed":
                    self._note_trust(message.trust_installed.trusted_authorities)
                case "status" | "addon" | "hubs" | "event":  # kinds that only newer agents send are ignored
                    if kind == "status":
                        now, accepted = self._parts.clock.now(), self._view is not None and self._view.accepted
                        self._parts.clocks.compare(self.cluster, message.status, now, accepted=accepted)
                    await self._queue_report(queue, kind, getattr(message, kind), len(raw))
            del message, raw  # not kept until the next message
        await queue.done()

    def _hold(self, beat: wire.Beat) -> None:
        """Passes a beat to the buffer."""
        available, entry = AVAILABLE.get(beat.verdict), self._audit.beat() if self._audit.beats else None
        self._last_beat = self._parts.beats.hold(
            self.cluster, beat.sequence, self, available=available, ends_silence=self._silent, entry=entry
        )

    async def _queue_report(self, queue: ReportQueue, kind: str, message: Any, size: int) -> None:
        """Queues a report of `size` bytes; waits while the queue is full. Its acknowledgement is sent once it is stored."""
        if kind == "hubs":
            self._ready_hubs = frozenset(hub.hub_id for hub in message.hubs if hub.state == wire.Hub.STATE_READY and hub.hub_id)
            self._order_move()

        async def store() -> None:
            if (ack := await self._reports.store(kind, message)) is not None:
                self._send(wire.HubMessage(report_ack=ack))

        await queue.put(store, size)

    def _note_trust(self, fingerprints: Iterable[str]) -> None:
        """Records the CAs that the agent reports in Hello and TrustInstalled. Raises BadRequestError."""
        self.trusted = checked_fingerprints(fingerprints)
        self._parts.trust_push.note(self._record, self.trusted)
        self._parts.trust_push.check(self)

    def acknowledge(self, sequence: int, *, ended_silence: bool) -> None:
        if ended_silence:
            self._silent = False
        if (due := self.acks.stored(sequence)) is None:
            return
        if ended_silence or self._now() >= due:
            self._write_soon()
        else:
            self._parts.deferred.call_at(due, self._write_soon)

    def refuse(self, error: StaleEpochError) -> None:
        if self._reports.leaving is None:
            self.end(error)

    def drain(self, reconnect_after: timedelta, reason: str = "the hub is shutting down") -> None:
        self._parts.sessions.drained += 1
        message = wire.Drain(reason=reason)
        message.reconnect_after.FromTimedelta(reconnect_after)
        self._send(wire.HubMessage(drain=message))

    def push(self, bundle: bytes) -> None:
        self._send(wire.HubMessage(trust_bundle=wire.TrustBundle(certificates=bundle)))

    def _apply(self, view: SessionClusterView) -> None:
        """Applies a view of the cluster and sends the changes to the agent. Ends the session of a denied cluster."""
        if view.denied:
            self.end(owners.denied_error(self.cluster, view.denial))
        before, was_silent = self._view, self._silent
        self._view, self._silent, self._reports.known_hubs = view, view.silent, view.hubs
        is_new_silence = view.accepted and view.silent and not was_silent
        if self._last_beat is not None and is_new_silence and self._reports.leaving is None:  # no beat undoes a farewell
            self._parts.beats.hold_again(self._last_beat)
        if before is not None and self.acks.set_lease(view.lease_duration):
            self._send(self.acks.last_ack())
        self._order_move()
        renewal = view.renewal, self._parts.is_outgoing(self._record)
        if before is None or before.desired != view.desired or self._renewal != renewal:
            self._renewal = renewal
            desired = wire.Desired.FromString(view.desired)
            desired.revision = view.revision
            within = self._parts.renew_within(self._record, view.renewal, self._parts.clock.now())
            if within is not None:
                desired.renew_within.FromTimedelta(within)
            if view.renewal is not None:
                desired.renew_addons_before.FromDatetime(view.renewal.before)
            self._send(wire.HubMessage(desired=desired))

    def _order_move(self) -> None:
        """Orders a move once the agent lists the target hub as ready. Before that, the agent could not follow the order."""
        target = self._view.move_to if self._view is not None and self._view.move_to in self._ready_hubs else ""
        if target and target != self._moves_to:
            self._send(wire.HubMessage(drain=wire.Drain(reason=MOVE_REASON, target_hub_id=target)))
        self._moves_to = target

    def reconsider(self) -> None:
        """Schedule a new read of the cluster. Before Welcome is sent, only note that the session must read it again."""
        self._stale = True
        self._reports.cluster_changed()
        if self._tasks is not None and self._view is not None and not self._is_refreshing:
            self._is_refreshing = True
            self._tasks.create_task(self._refresh())

    async def _refresh(self) -> None:
        pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=5))
        try:
            while self._stale:
                self._stale = False
                try:
                    view = await self._parts.store.read(read_view, self.cluster)
                except TRANSIENT:
                    self._stale = True
                    await asyncio.sleep(pauses.next().total_seconds())
                    continue
                self._apply(view)
        except Exception as error:  # noqa: BLE001 - it becomes the stream's status
            self.end(error)
        finally:
            self._is_refreshing = False

    def _send(self, message: wire.HubMessage | bytes) -> None:
        """Queues a message, encoded or not. Ends the session if the agent does not read."""
        if len(self._unsent) >= MAX_UNSENT:
            self.end(TooManyRequestsError("the agent does not read what the hub sends"))
            return
        self._unsent.append(message if isinstance(message, bytes) else message.SerializeToString())
        self._write_soon()

    def _write_soon(self) -> None:
        if self._writer is None and not self._is_over:
            self._writer = self._writers.create_task(self._write())

    async def _write(self) -> None:
        """Writes until no message is left or the stream has ended. The handler itself detects the end of the stream."""
        try:
            while (raw := self._unsent.pop(0) if self._unsent else self.acks.due_ack(self._now())) is not None:
                await self._context.write(raw)
        except (aio.BaseError, aio.AioRpcError, asyncio.InvalidStateError):
            pass
        except Exception as error:  # noqa: BLE001 - it becomes the stream's status
            self.end(error)
        finally:
            self._writer = None


async def _fail(error: Exception) -> NoReturn:
    """Raises the error, which ends the group of tasks in which this coroutine runs."""
    raise error
