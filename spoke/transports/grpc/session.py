"""The session stream: one reader, serialised writes, acknowledgements matched to beats and reports."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from grpc import aio

from machinery import product
from machinery.errors import BY_REASON, InvalidError
from machinery.identity import AddOnName, HubId
from machinery.meta.conditions import Condition
from machinery.observability import tracing
from machinery.runtime.clock import Clock
from machinery.wire.session.v1 import session_pb2 as wire
from spoke.domain.hubs import ListedHub
from spoke.domain.next_step import SessionEnd
from spoke.domain.report import AgentEvent, ClusterReport
from spoke.domain.schedule import PATIENCE
from spoke.ports.hub import Desired, Drain, HubLostError, SessionHello
from spoke.transports import OpenSession
from spoke.transports.grpc.errors import to_loss
from spoke.transports.grpc.messages import conditions_of, desired_of, drain_of, event_of, hubs_of, report_of, verdict_of

Stream = aio.StreamStreamCall[wire.AgentMessage, wire.HubMessage]

PROTOCOL = "v1"
CAPABILITIES = ("drain", "several-hubs", "trust")
DEFAULT_INTERVAL = timedelta(seconds=10)
LAST_WORDS = timedelta(seconds=1)
"""How long the agent waits for a hub that it leaves to read the farewell."""


class GrpcSession(OpenSession):
    """One open stream. `start` sends Hello and waits for Welcome; `stop` ends it."""

    def __init__(self, stream: Stream, clock: Clock, patience: timedelta = PATIENCE) -> None:
        """`patience` bounds how long a beat may stay unacknowledged when beats are frequent."""
        super().__init__()
        self._stream = stream
        self._patience = patience
        self._clock = clock
        self._interval = DEFAULT_INTERVAL
        self._offset = timedelta()
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
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
        """Send Hello. Raises HubLostError with the hub's reason when the hub does not answer with Welcome."""
        hello = wire.Hello(
            agent_version=product.version(),
            protocol_versions=[PROTOCOL],
            capabilities=CAPABILITIES,
            cluster_uid=greeting.cluster_uid,
            epoch=greeting.epoch,
            hubs=hubs_of(greeting.hubs) if greeting.hubs else None,
            patience_seconds=int(min(self._patience, PATIENCE).total_seconds()),
            trusted_authorities=greeting.trusted,
        )
        hello.agent_time.FromDatetime(self._clock.now())
        try:
            await self._stream.write(wire.AgentMessage(hello=hello))
            first = await self._stream.read()
        except aio.AioRpcError as error:
            raise to_loss(error) from error
        except asyncio.InvalidStateError as error:  # the call ended while we wrote
            raise await self._ending() from error
        if not isinstance(first, wire.HubMessage):
            raise await self._ending()
        if first.WhichOneof("message") != "welcome":
            raise HubLostError("the hub did not begin with a welcome: is this a hub of this project?")
        self._welcomed(first.welcome)
        self._reader = asyncio.create_task(self._read(), name="session reader")

    async def stop(self) -> None:
        """End the stream; all pending calls fail with HubLostError."""
        self.finish(HubLostError("the session was closed"))
        self._stream.cancel()
        if self._writes:
            await asyncio.wait(self._writes)
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader

    async def beat(self, *, available: bool | None) -> None:
        self._check()
        self._beats += 1
        sequence = self._beats
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unacknowledged[sequence] = acknowledged
        try:
            await self._write(wire.AgentMessage(beat=wire.Beat(sequence=sequence, verdict=verdict_of(available))))
            await acknowledged
        finally:
            self._unacknowledged.pop(sequence, None)

    @tracing.client_span("report status")
    async def report(self, report: ClusterReport) -> int:
        sequence = self._next_report()
        message = wire.AgentMessage(status=report_of(report, sequence))
        message.status.agent_time.FromDatetime(self._clock.now())
        message.status.traceparent = _traceparent()
        return await self._ask(sequence, message)

    @tracing.client_span("report addon")
    async def report_addon(self, addon: AddOnName, conditions: Sequence[Condition], *, driver: str = "") -> int:
        sequence = self._next_report()
        told = wire.AddOnReport(
            sequence=sequence,
            addon_name=addon,
            conditions=conditions_of(conditions),
            kube_client_driver=driver,
            traceparent=_traceparent(),
        )
        return await self._ask(sequence, wire.AgentMessage(addon=told))

    async def tell(self, news: AgentEvent) -> None:
        await self._write(wire.AgentMessage(event=event_of(news)))

    def _present(self) -> Desired | None:
        return self._desired

    async def drained(self) -> Drain:
        return await self._drains.get()

    async def trust_bundle(self) -> bytes:
        return await self._bundles.get()

    async def trust_installed(self, trusted: Sequence[str]) -> None:
        await self._write(wire.AgentMessage(trust_installed=wire.TrustInstalled(trusted_authorities=trusted)))

    async def report_hub_list(self, hubs: Sequence[ListedHub]) -> None:
        await self._write(wire.AgentMessage(hubs=hubs_of(hubs)))

    async def farewell(self, hub_id: HubId, epoch: int) -> None:
        """After `done_writing` the hub ends the stream; cancelling at once could discard the farewell."""
        with suppress(HubLostError, aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            async with asyncio.timeout(LAST_WORDS.total_seconds()):
                await self._write(wire.AgentMessage(farewell=wire.Farewell(hub_id=hub_id, epoch=epoch)))
                await self._stream.done_writing()
                await self.ended()
        await self.stop()

    def _welcomed(self, welcome: wire.Welcome) -> None:
        if welcome.HasField("hub_time"):
            hub_time: datetime = welcome.hub_time.ToDatetime(UTC)
            self._offset = hub_time - self._clock.now()
        if welcome.HasField("beat_interval"):
            self._set_interval(welcome.beat_interval.ToTimedelta())

    def _set_interval(self, interval: timedelta) -> None:
        if interval > timedelta():
            self._interval = interval

    def _next_report(self) -> int:
        self._check()
        self._reports += 1
        return self._reports

    async def _ask(self, sequence: int, message: wire.AgentMessage) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._unanswered[sequence] = answer
        try:
            await self._write(message)
            return await answer
        finally:
            self._unanswered.pop(sequence, None)

    async def _write(self, message: wire.AgentMessage) -> None:
        """Finish the write even if the caller is cancelled: grpc cancels the whole call with a cancelled write."""
        writing = asyncio.create_task(self._written(message), name="session write")
        self._writes.add(writing)
        writing.add_done_callback(self._wrote)
        await asyncio.shield(writing)

    def _wrote(self, writing: asyncio.Task[None]) -> None:
        self._writes.discard(writing)
        if not writing.cancelled():
            writing.exception()  # the caller may be gone; `_end` holds the reason

    async def _written(self, message: wire.AgentMessage) -> None:
        async with self._writing:
            self._check()
            try:
                await self._stream.write(message)
            except (aio.AioRpcError, asyncio.InvalidStateError):
                lost = await self._ending()
                self.finish(lost)
                raise lost from None

    async def _read(self) -> None:
        lost = HubLostError("the session was closed")
        try:
            while isinstance(message := await self._stream.read(), wire.HubMessage):
                self._take(message)
            lost = await self._ending()
        except aio.AioRpcError as error:
            lost = to_loss(error)
        finally:
            self.finish(lost)

    async def _ending(self) -> HubLostError:
        """The reason for the end of the stream, from its gRPC status."""
        code, details = await self._stream.code(), await self._stream.details()
        trailing = await self._stream.trailing_metadata()
        error = aio.AioRpcError(code, aio.Metadata(), trailing, details=details or "the hub ended the session")
        lost = to_loss(error)
        if lost.loss is SessionEnd.UNREACHABLE and self._leaving:
            return HubLostError(lost.message, SessionEnd.DRAINED)
        return lost

    def finish(self, lost: HubLostError) -> None:
        super().finish(lost)
        for waiting in (self._unacknowledged, self._unanswered):
            _fail(waiting.values(), self._end.result().fresh_copy())

    def _take(self, message: wire.HubMessage) -> None:
        """Handle one message of the hub. Kinds that this version does not know are ignored."""
        match message.WhichOneof("message"):
            case "beat_ack":
                self._beat_acknowledged(message.beat_ack)
            case "report_ack":
                self._report_answered(message.report_ack)
            case "desired":
                self._desired = desired_of(message.desired)
                self._news.set()
            case "drain":
                drain = drain_of(message.drain)
                self._leaving = self._leaving or drain.target is None
                self._drains.put_nowait(drain)
            case "trust_bundle":
                self._bundles.put_nowait(message.trust_bundle.certificates)
            case _:
                pass

    def _beat_acknowledged(self, ack: wire.BeatAck) -> None:
        if ack.HasField("next_interval"):
            self._set_interval(ack.next_interval.ToTimedelta())
        for sequence, waiting in self._unacknowledged.items():
            if sequence <= ack.sequence and not waiting.done():
                waiting.set_result(None)

    def _report_answered(self, ack: wire.ReportAck) -> None:
        waiting = self._unanswered.get(ack.sequence)
        if waiting is None or waiting.done():
            return
        if ack.reason:
            waiting.set_exception(BY_REASON.get(ack.reason, InvalidError)(ack.message or ack.reason))
        else:
            waiting.set_result(ack.revision)


def _traceparent() -> str:
    """The trace context for the hub; empty without one."""
    context = tracing.current()
    return context.traceparent if context is not None else ""


def _fail(waiting: Iterable[asyncio.Future[Any]], error: HubLostError) -> None:
    for future in waiting:
        if not future.done():
            future.set_exception(error)
            future.exception()  # marks the error as retrieved: a caller that failed while writing never awaits this future
