"""The session stream: one reader, a queue from which gRPC writes, and acknowledgements matched to beats and reports."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, timedelta
from typing import Any, TypeVar

from grpc import aio

from machinery import product
from machinery.errors import BY_REASON, InvalidError
from machinery.identity import AddOnName, HubId
from machinery.meta.conditions import Condition
from machinery.observability import tracing
from machinery.runtime.clock import Clock
from machinery.wire.session.v1 import session_pb2 as wire
from spoke.domain.hubs import ListedHub
from spoke.domain.next_step import SessionLoss
from spoke.domain.report import AgentEvent, ClusterReport
from spoke.domain.schedule import MAX_ACK_TIMEOUT
from spoke.ports.hub import Desired, Drain, HubLostError, SessionHello
from spoke.transports import OpenSession
from spoke.transports.grpc.errors import lost_error
from spoke.transports.grpc.messages import VERDICTS, conditions_of, desired_of, drain_of, encode_report, event_of, hubs_of

T = TypeVar("T")
Stream = aio.StreamStreamCall[wire.AgentMessage, wire.HubMessage]

PROTOCOL = "v1"
CAPABILITIES = ("drain", "several-hubs", "trust")
DEFAULT_INTERVAL = timedelta(seconds=10)
FAREWELL_TIMEOUT = timedelta(seconds=1)
"""Time for which the agent waits until a hub that it leaves has read the farewell."""


class MessageQueue(asyncio.Queue[wire.AgentMessage | None], AsyncIterator[wire.AgentMessage]):
    """Messages to send. gRPC takes and writes one at a time. The value None ends the stream.

    Callers do not wait for a write, because gRPC cancels the whole call if a waiting write is cancelled.
    """

    async def __anext__(self) -> wire.AgentMessage:
        if (message := await self.get()) is None:
            raise StopAsyncIteration
        return message


class GrpcSession(OpenSession):
    """One open stream. `start` sends Hello and waits for Welcome; `stop` ends it."""

    def __init__(
        self, connect: Callable[[MessageQueue], Stream], clock: Clock, ack_timeout: timedelta = MAX_ACK_TIMEOUT
    ) -> None:
        """`connect`: opens the stream that sends the queued messages.

        `ack_timeout`: reported to the hub: the agent waits this long for an acknowledgement if beats are frequent.
        """
        super().__init__()
        self._interval = DEFAULT_INTERVAL
        self._offset = timedelta()
        self._outbox = MessageQueue()
        self._stream: Stream | None = connect(self._outbox)
        self._ack_timeout = ack_timeout
        self._clock = clock
        self._beats = 0
        self._reports = 0
        self._unacknowledged: dict[int, asyncio.Future[None]] = {}
        self._unanswered: dict[int, asyncio.Future[int]] = {}
        self._desired: Desired | None = None
        self._drains: asyncio.Queue[Drain] = asyncio.Queue()
        self._bundles: asyncio.Queue[bytes] = asyncio.Queue()
        self._leaving = False
        self._reader: asyncio.Task[None] | None = None

    @property
    def beat_interval(self) -> timedelta:
        return self._interval

    @property
    def hub_time_offset(self) -> timedelta:
        return self._offset

    async def start(self, greeting: SessionHello) -> None:
        """Send Hello and wait for Welcome. Raises HubLostError with the hub's reason if another answer comes."""
        hello = wire.Hello(
            agent_version=product.version(),
            protocol_versions=[PROTOCOL],
            capabilities=CAPABILITIES,
            cluster_uid=greeting.cluster_uid,
            epoch=greeting.epoch,
            hubs=hubs_of(greeting.hubs) if greeting.hubs else None,
            ack_timeout_seconds=int(min(self._ack_timeout, MAX_ACK_TIMEOUT).total_seconds()),
            trusted_authorities=greeting.trusted,
        )
        hello.agent_time.FromDatetime(self._clock.now())
        self._outbox.put_nowait(wire.AgentMessage(hello=hello))
        if (stream := self._stream) is None:
            raise AssertionError
        try:
            first = await stream.read()
        except aio.AioRpcError as error:
            raise lost_error(error) from error
        if not isinstance(first, wire.HubMessage):
            raise await self._end_reason(stream)
        if first.WhichOneof("message") != "welcome":
            raise HubLostError("the hub did not answer with Welcome: check that the address is that of a Muster hub")
        if first.welcome.HasField("hub_time"):
            self._offset = first.welcome.hub_time.ToDatetime(UTC) - self._clock.now()
        self._set_interval(first.welcome.beat_interval.ToTimedelta())
        self._reader = asyncio.create_task(self._read(stream), name="session reader")

    async def stop(self) -> None:
        """End the stream; all pending calls fail with HubLostError."""
        self.finish(HubLostError("the session was closed"))
        if self._stream is not None:
            self._stream.cancel()
            # gRPC closes a connection only when its last call is freed, and a session can be part of a reference cycle.
            self._stream = None
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader

    async def beat(self, *, available: bool | None) -> None:
        self._beats += 1
        self._write(wire.AgentMessage(beat=wire.Beat(sequence=self._beats, verdict=VERDICTS[available])))
        await _wait_for_answer(self._unacknowledged, self._beats)

    @tracing.client_span("report status")
    async def report(self, report: ClusterReport) -> int:
        self._reports += 1
        status = encode_report(report, self._reports)
        status.agent_time.FromDatetime(self._clock.now())
        status.traceparent = _traceparent()
        self._write(wire.AgentMessage(status=status))
        return await _wait_for_answer(self._unanswered, self._reports)

    @tracing.client_span("report addon")
    async def report_addon(self, addon: AddOnName, conditions: Sequence[Condition], *, driver: str = "") -> int:
        self._reports += 1
        report = wire.AddOnReport(
            sequence=self._reports,
            addon_name=addon,
            conditions=conditions_of(conditions),
            kube_client_driver=driver,
            traceparent=_traceparent(),
        )
        self._write(wire.AgentMessage(addon=report))
        return await _wait_for_answer(self._unanswered, self._reports)

    async def send_event(self, news: AgentEvent) -> None:
        self._write(wire.AgentMessage(event=event_of(news)))

    def _present(self) -> Desired | None:
        return self._desired

    async def drained(self) -> Drain:
        return await self._drains.get()

    async def trust_bundle(self) -> bytes:
        return await self._bundles.get()

    async def trust_installed(self, trusted: Sequence[str]) -> None:
        self._write(wire.AgentMessage(trust_installed=wire.TrustInstalled(trusted_authorities=trusted)))

    async def report_hub_list(self, hubs: Sequence[ListedHub]) -> None:
        self._write(wire.AgentMessage(hubs=hubs_of(hubs)))

    async def farewell(self, hub_id: HubId, epoch: int) -> None:
        """Send the farewell and wait until the hub ends the stream, because an earlier cancellation could discard it."""
        with suppress(HubLostError, TimeoutError):
            self._write(wire.AgentMessage(farewell=wire.Farewell(hub_id=hub_id, epoch=epoch)))
            self._outbox.put_nowait(None)
            async with asyncio.timeout(FAREWELL_TIMEOUT.total_seconds()):
                await self.ended()
        await self.stop()

    def _set_interval(self, interval: timedelta) -> None:
        if interval > timedelta():
            self._interval = interval

    def _write(self, message: wire.AgentMessage) -> None:
        """Queue a message. Raises HubLostError when the session has ended."""
        self._check()
        self._outbox.put_nowait(message)

    async def _read(self, stream: Stream) -> None:
        """Handle the hub's messages until the end of the stream. Kinds that this version does not know are ignored."""
        lost = HubLostError("the session was closed")
        try:
            while isinstance(message := await stream.read(), wire.HubMessage):
                match message.WhichOneof("message"):
                    case "beat_ack":
                        self._set_interval(message.beat_ack.next_interval.ToTimedelta())
                        for sequence, waiting in self._unacknowledged.items():
                            if sequence <= message.beat_ack.sequence and not waiting.done():
                                waiting.set_result(None)
                    case "report_ack":
                        self._resolve_report(message.report_ack)
                    case "desired":
                        self._desired = desired_of(message.desired)
                        self._news.set()
                    case "drain":
                        drain = drain_of(message.drain)
                        self._leaving = self._leaving or drain.target is None
                        self._drains.put_nowait(drain)
                    case "trust_bundle":
                        self._bundles.put_nowait(message.trust_bundle.certificates)
            lost = await self._end_reason(stream)
        except aio.AioRpcError as error:
            lost = lost_error(error)
        finally:
            self.finish(lost)

    async def _end_reason(self, stream: Stream) -> HubLostError:
        code, details = await stream.code(), await stream.details()
        trailing = await stream.trailing_metadata()
        error = aio.AioRpcError(code, aio.Metadata(), trailing, details=details or "the hub ended the session")
        lost = lost_error(error)
        if lost.loss is SessionLoss.UNREACHABLE and self._leaving:
            return HubLostError(lost.message, SessionLoss.DRAINED)
        return lost

    def finish(self, lost: HubLostError) -> None:
        super().finish(lost)
        self._outbox.put_nowait(None)  # ends gRPC's wait for the next message, which continues even after the call has ended
        waits: tuple[asyncio.Future[Any], ...] = (*self._unacknowledged.values(), *self._unanswered.values())
        for waiting in waits:
            if not waiting.done():
                waiting.set_exception(self._end.result().fresh_copy())
                waiting.exception()  # marks the error as retrieved, in case that the caller was cancelled

    def _resolve_report(self, ack: wire.ReportAck) -> None:
        waiting = self._unanswered.get(ack.sequence)
        if waiting is None or waiting.done():
            return
        if ack.reason:
            waiting.set_exception(BY_REASON.get(ack.reason, InvalidError)(ack.message or ack.reason))
        else:
            waiting.set_result(ack.revision)


async def _wait_for_answer(waiting: dict[int, asyncio.Future[T]], sequence: int) -> T:
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    waiting[sequence] = answer
    try:
        return await answer
    finally:
        del waiting[sequence]


def _traceparent() -> str:
    context = tracing.current()
    return context.traceparent if context is not None else ""
