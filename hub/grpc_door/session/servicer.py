"""The Session service: admits a stream by its certificate and Hello, and ends it with a status."""

import asyncio
from contextlib import suppress
from datetime import timedelta

import grpc
from google.protobuf.message import DecodeError

from hub.access.rules import session_holder
from hub.grpc_door.errors import Context, set_status
from hub.grpc_door.session.calls import open_call
from hub.grpc_door.session.context import DoorContext
from hub.grpc_door.session.stream import Session
from machinery.errors import BadRequestError, DeadlineError, UnavailableError
from machinery.identity import SerialNumber
from machinery.wire.session.v1 import session_pb2 as wire

SERVICE = "muster.session.v1.Session"
HELLO_WITHIN = timedelta(seconds=10)
REFUSED_WITHIN = timedelta(seconds=1)
"""Time for which a refusal waits for the Hello."""


class SessionServicer:
    """Handler of Connect. It is registered without serializers, because sessions decode messages themselves."""

    def __init__(self, parts: DoorContext) -> None:
        self._parts = parts
        self._waiting: set[asyncio.Timeout] = set()
        parts.peers.listen(self._revoked)

    def service(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(SERVICE, {"Connect": grpc.stream_stream_rpc_method_handler(self.connect)})

    async def connect(self, _messages: object, context: Context) -> None:
        is_read = False
        try:
            async with open_call(self._parts, context, self._parts.attributes.session(None)) as (call, record):
                call.asked = self._parts.attributes.session(record.cluster)
                self._parts.cordon.check()
                cluster, _ = session_holder(record)
                with self._parts.limits.session(cluster):
                    session = Session(call, record, await self._hello(context))
                    is_read = True
                    await session.serve()
        except asyncio.CancelledError as cancelled:
            cancelled.__traceback__ = None  # else it would keep the session until a full garbage collection
            raise
        except Exception as error:  # noqa: BLE001 - every failure becomes the stream's status
            if not is_read:
                await _read_hello(context)
            set_status(context, error)

    def stop_waiting(self) -> None:
        """Ends streams that have not sent Hello, with UNAVAILABLE. The gate must already be closed."""
        for waiting in tuple(self._waiting):
            if not waiting.expired():
                waiting.reschedule(asyncio.get_running_loop().time())

    async def _hello(self, context: Context) -> wire.Hello:
        try:
            async with asyncio.timeout(HELLO_WITHIN.total_seconds()) as waiting:
                self._waiting.add(waiting)
                raw = await context.read()
            message = wire.AgentMessage.FromString(raw) if isinstance(raw, bytes) else wire.AgentMessage()
        except TimeoutError:
            self._parts.gate.check()
            raise DeadlineError("the agent sent no Hello in time") from None
        except DecodeError:
            raise BadRequestError("the first message cannot be decoded") from None
        finally:
            self._waiting.discard(waiting)
        if message.WhichOneof("message") != "hello":
            raise BadRequestError("the first message of a session must be Hello")
        return message.hello

    def _revoked(self, serials: frozenset[SerialNumber] | None) -> None:
        for session in self._parts.sessions.all():
            if serials is None:
                session.end(revocations_error())
            elif session.serial in serials:
                session.end(self._parts.peers.refusal(session.serial))


def revocations_error() -> UnavailableError:
    """Returns the error for sessions of a replica that cannot read revocations. The agent keeps its certificate and retries."""
    return UnavailableError("the hub cannot read at present which certificates are revoked: try again, or another replica")


async def _read_hello(context: Context) -> None:
    """Reads the Hello of a refused peer. A peer that writes while its stream ends would get INTERNAL instead of the status."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REFUSED_WITHIN.total_seconds()):
            await context.read()
