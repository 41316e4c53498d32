"""One agent's session stream, from Hello to its end.

It reads and writes raw bytes and decodes them here: a heartbeat costs one read, and its acknowledgement one write. The
handler's task reads. A second task writes and exists only while there is something to write, so nothing waits for a peer that
does not read. A third task stores reports, so that beats do not wait for them. `end` ends the session with an error's status.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from google.protobuf.message import DecodeError
from grpc import aio

from hub.api.certificateauthorities.authority import told
from hub.api.certificates import CertificateRecord
from hub.api.managedclusters.agent_annotations import sound_version
from hub.grpc_door.calls import CallAttributes
from hub.grpc_door.messages import SessionClusterView, available_of, instant_of, read_view
from hub.grpc_door.session.acknowledgements import Acknowledgements
from hub.grpc_door.session.admission import admit, welcome
from hub.grpc_door.session.context import DoorContext
from hub.grpc_door.session.drain import Aging
from hub.grpc_door.session.interceptor import RpcCall, SessionAudit
from hub.grpc_door.session.orders import Moving, Renewing
from hub.grpc_door.session.reports import TRANSIENT, SessionReports
from hub.grpc_door.session.trust_bundle_push import TrustBundleReceiver
from hub.heartbeat import BeatSink, PendingBeat
from hub.registry import owners
from machinery.errors import BadRequestError, DenialCause, StaleEpochError, TooManyRequestsError, UnauthorizedError
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.runtime.backoff import Backoff
from machinery.wire.session.v1 import session_pb2 as wire

MAX_UNSENT = 1_000
LAST_WORDS = timedelta(seconds=1)


def expired() -> UnauthorizedError:
    """Returns the error that ends a stream whose certificate has expired."""
    message = "the certificate of this stream has expired"
    return UnauthorizedError(message, causes=DenialCause.CERTIFICATE_EXPIRED.because(message))


class Session(BeatSink, TrustBundleReceiver):
    """An agent's session. `serve` runs it until it ends."""

    def __init__(
        self, parts: DoorContext, call: RpcCall, record: CertificateRecord, cluster: ClusterName, agent: AgentId
    ) -> None:
        self.id = uuid4().hex
        self.cluster = cluster
        self.agent = agent
        self.agent_version = ""
        self._parts = parts
        self._call = call
        self._context = call.context
        self._record = record
        self._view: SessionClusterView | None = None
        self._silent = False
        self._heard: PendingBeat | None = None
        self._handler: asyncio.Task[Any] | None = None
        self._ending: Exception | None = None
        self._unsent: deque[bytes] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._refresher: asyncio.Task[None] | None = None
        self._stale = False
        self._loop = asyncio.get_running_loop()
        self._told = Acknowledgements(parts.tempo, parts.deferred, self._loop.time, self._write_soon)
        self._audit = SessionAudit(call, cluster, CallAttributes(parts.group_suffix))
        self._reports = SessionReports(call, record, cluster, self._audit, send=self._send_message, fail=self.end)
        self._moving = Moving(self._send_message)
        self._renewing = Renewing(parts, record)
        self.trusted: frozenset[str] | None = None

    @property
    def serial(self) -> SerialNumber:
        return self._record.serial

    async def serve(self, hello: wire.Hello) -> None:
        """Sends Welcome, then reads until the agent leaves. Raises the error that ends the session."""
        self._handler = asyncio.current_task()
        self.agent_version, self.epoch = sound_version(hello.agent_version), hello.epoch
        self._reports.agent_version, self._reports.epoch = self.agent_version, self.epoch
        self._told.begin(timedelta(seconds=hello.patience_seconds))
        received = self._parts.clock.now()
        left = self._record.not_after - self._parts.clock.now()
        expiry = self._loop.call_later(left.total_seconds(), self.end, expired())
        aging = Aging(self._parts.age, self)
        try:
            with self._parts.feed.subscribe_to_cluster(self.cluster, self.reconsider):
                async with self._call.seat():
                    view = await admit(self._parts, self.cluster, self.agent, hello)
                await self._call.confirm()  # revocations end only sessions that were added; no await between this and `add`
                self._apply(view, hello)
                if self._stale:
                    self.reconsider()
                if (entry := self._call.opened()) is not None:
                    self._parts.sessions.write_with(entry)
                if hello.HasField("hubs"):
                    self._moving.listed(hello.hubs)
                    await self._reports.put("hubs", hello.hubs, hello.ByteSize())
                self._compare_clocks(hello, received)
                self._note_trust(hello.trusted_authorities)
                await self._read()
        except asyncio.CancelledError:
            if self._ending is None or self._handler is None:
                raise
            self._handler.uncancel()
            raise self._ending from None
        finally:
            self._handler = None
            expiry.cancel()
            aging.cancel()
            self._parts.trusting.leave(self)
            self._parts.sessions.remove(self)
            await self._last_words()

    def _compare_clocks(self, message: wire.Hello | wire.StatusReport, received: datetime) -> None:
        if message.HasField("agent_time"):
            again = isinstance(message, wire.StatusReport)
            self._parts.clocks.told(self.cluster, instant_of(message.agent_time, "agent_time") - received, again=again)

    def end(self, error: Exception) -> None:
        """Ends the session with an error. Errors other than MusterError are reported as internal errors."""
        if self._ending is None:
            self._ending = error
            if self._handler is not None:
                self._handler.cancel()

    def drain(self, reconnect_after: timedelta, reason: str = "the hub is shutting down") -> None:
        self._parts.sessions.drained += 1
        message = wire.Drain(reason=reason)
        message.reconnect_after.FromTimedelta(reconnect_after)
        self._send_message(wire.HubMessage(drain=message))

    def acknowledge(self, sequence: int, *, ended_silence: bool) -> None:
        if ended_silence:
            self._silent = False
        self._told.stored(sequence, at_once=ended_silence)

    def refuse(self, error: StaleEpochError) -> None:
        if self._reports.leaving is None:
            self.end(error)

    def _apply(self, view: SessionClusterView, hello: wire.Hello | None = None) -> None:
        """Applies a view of the cluster and sends the agent what has changed. Ends the session of a denied cluster."""
        if view.denied:
            self.end(owners.denied(self.cluster))
        before, was_silent = self._view, self._silent
        self._view, self._silent, self._reports.known_hubs = view, view.silent, view.hubs
        is_new_silence = view.accepted and view.silent and not was_silent
        if self._heard is not None and is_new_silence and self._reports.leaving is None:  # no beat undoes a farewell
            self._parts.beats.hold_again(self.cluster, self._heard)
        is_new_pace = self._told.lease(view.lease_duration)
        if hello is not None:
            self._parts.gate.check()  # a drain that has begun does not include this session
            self._parts.cordon.check()
            self._parts.sessions.add(self)
            self._send(welcome(self._parts, self.id, self._told.interval))
        elif is_new_pace:
            self._send(self._told.again())
        self._moving.wanted(view.move_to)
        if before is None or before.desired != view.desired or self._renewing.is_news(view.renewal):
            desired = wire.Desired.FromString(view.desired)
            self._renewing.into(desired, view.renewal)
            desired.revision = view.revision
            self._send_message(wire.HubMessage(desired=desired))

    async def _read(self) -> None:
        read, end = self._context.read, aio.EOF
        while True:
            raw = await read()
            if raw is end:
                await self._reports.queue.done()
                return
            try:
                message = wire.AgentMessage.FromString(raw)
            except DecodeError:
                raise BadRequestError("a message on the session stream cannot be decoded") from None
            match kind := message.WhichOneof("message"):
                case "beat":
                    self._beat(message.beat)
                    continue
                case "farewell":
                    await self._reports.farewell(message.farewell, self)
                    return
                case "trust_installed":
                    self._note_trust(message.trust_installed.trusted_authorities)
                case "status":
                    self._compare_clocks(message.status, self._parts.clock.now())
                case "hubs":
                    self._moving.listed(message.hubs)
            if kind is not None:  # a kind of a newer agent is ignored
                await self._reports.put(kind, getattr(message, kind), len(raw))

    def _note_trust(self, fingerprints: Iterable[str]) -> None:
        """Records the CAs that the agent reports in Hello and TrustInstalled. Raises BadRequestError."""
        self.trusted = told(fingerprints)
        self._parts.trusting.note(self._record, self.trusted)
        self._parts.trusting.look(self)

    def push(self, bundle: bytes) -> None:
        self._send_message(wire.HubMessage(trust_bundle=wire.TrustBundle(certificates=bundle)))

    def _beat(self, beat: wire.Beat) -> None:
        if self._view is None or not self._view.accepted:
            if self._audit.beats:
                self._audit.unstored_beat()
            return
        entry = self._audit.beat() if self._audit.beats else None
        self._heard = self._parts.beats.hold(
            self.cluster, beat.sequence, self, available=available_of(beat.verdict), ends_silence=self._silent, entry=entry
        )

    def reconsider(self) -> None:
        """Schedules a refresh; during admission it is postponed, because the admission's view may be older than the change."""
        self._stale = True
        if self._refresher is None and self._view is not None:
            self._refresher = asyncio.create_task(self._refresh(), name=f"session {self.cluster} refresh")

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
            self._refresher = None

    def _send_message(self, message: wire.HubMessage) -> None:
        self._send(message.SerializeToString())

    def _send(self, raw: bytes) -> None:
        if len(self._unsent) >= MAX_UNSENT:
            self.end(TooManyRequestsError("the agent does not read what the hub sends"))
            return
        self._unsent.append(raw)
        self._write_soon()

    def _write_soon(self) -> None:
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Writes until nothing is left. It stops when the stream is over; the handler notices that itself."""
        try:
            while (raw := self._unsent.popleft() if self._unsent else self._told.due_ack()) is not None:
                await self._context.write(raw)
        except (aio.BaseError, aio.AioRpcError, asyncio.InvalidStateError):
            pass
        except Exception as error:  # noqa: BLE001 - it becomes the stream's status
            self.end(error)
        finally:
            self._writer = None

    async def _last_words(self) -> None:
        """Waits briefly until unsent messages are written, and ends the tasks of this session."""
        if self._refresher is not None:
            self._refresher.cancel()
        self._reports.queue.end()
        self._told.flush()
        last = {task for task in (self._writer, self._reports.leaving) if task is not None}
        if last:
            await asyncio.wait(last, timeout=LAST_WORDS.total_seconds())
        if self._writer is not None:
            self._writer.cancel()
