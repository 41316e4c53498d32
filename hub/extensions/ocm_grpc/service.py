"""The gRPC service `io.cloudevents.v1.CloudEventService`: Publish and Subscribe."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import grpc
import msgspec
import structlog
from google.protobuf.message import DecodeError

from hub.extensions.ocm_grpc import cloudevents
from hub.extensions.ocm_grpc.api import ApiAnswer, ApiCaller
from hub.extensions.ocm_grpc.relay import Relay, Relays
from hub.extensions.ocm_grpc.subscriptions import Subscription
from hub.grpc_door.errors import Context
from hub.grpc_door.gate import CallCounts, Gate
from hub.grpc_door.session.drain import Cordon
from machinery.apiserver.http.status_errors import status_document
from machinery.apiserver.server import ApiServer
from machinery.errors import BadRequestError, MusterError, UnauthorizedError, UnavailableError
from machinery.identity import ClusterName
from machinery.runtime.clock import Clock

WRITE_TIMEOUT = timedelta(seconds=30)
"""The hub closes the connection of an agent that has not read for this time."""
LONGEST_MESSAGE = 2048
"""Longest error message in characters. Clients limit the size of trailing metadata."""
_CODES = {
    "BadRequest": grpc.StatusCode.INVALID_ARGUMENT,
    "Invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "Unauthorized": grpc.StatusCode.UNAUTHENTICATED,
    "Forbidden": grpc.StatusCode.PERMISSION_DENIED,
    **dict.fromkeys(("ServiceUnavailable", "Timeout", "TooManyRequests"), grpc.StatusCode.UNAVAILABLE),
}
"""By reason. All other reasons give FAILED_PRECONDITION, as in OCM's hub."""

log = structlog.get_logger(__name__)


class EventService:
    """The methods of the service: Publish and Subscribe."""

    def __init__(self, server: ApiServer, relays: Relays, cordon: Cordon, gate: Gate, clock: Clock) -> None:
        self._server = server
        self._relays = relays
        self._cordon = cordon
        self._gate = gate
        self._clock = clock
        self.counts = CallCounts()
        self._open: dict[tuple[bytes, ClusterName, cloudevents.DataType], set[Subscription]] = {}

    def handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            cloudevents.SERVICE,
            {
                "Publish": grpc.unary_unary_rpc_method_handler(self.publish),
                "Subscribe": grpc.unary_stream_rpc_method_handler(self.subscribe),
            },
        )

    def all(self) -> list[Subscription]:
        return [each for members in self._open.values() for each in members]

    async def publish(self, raw: bytes, context: Context) -> bytes:
        """Make the API request for the event. The agent gets the changed object through its subscription, not as the answer."""
        async with self._call("Publish", context) as relay:
            event = cloudevents.published(_decoded(cloudevents.PublishRequest, raw).event)
            caller = ApiCaller(self._server, relay.shown, _metadata(context), lambda: None)
            followers = tuple(self._open.get((caller.credential, event.cluster, event.data_type), ()))
            if event.action == cloudevents.RESYNC:
                uids = cloudevents.claimed_objects(event)
                for each in followers:
                    each.resync(uids)
                return b""
            with _held(followers if event.data_type is cloudevents.REQUESTS else ()):
                answer = await self._request(caller, event)
            if answer.is_error:
                for each in followers if event.data_type is cloudevents.LEASES else ():
                    each.resync(())  # its Lease may be outdated
                raise answer.error()
            relay.permitted = True
            if event.data_type in (cloudevents.LEASES, cloudevents.TOKENS):
                result = answer.document()
                if event.data_type is cloudevents.TOKENS:  # the agent finds the answer by the uid of the object in its event
                    result = {**event.body, "status": result.get("status")}
                for each in followers:
                    each.push(event.action, result)
            return b""

    async def _request(self, caller: ApiCaller, event: cloudevents.PublishedEvent) -> ApiAnswer:
        asked = cloudevents.api_request(event)
        if event.is_agents_request:  # fail if the cluster is absent: an agent with a certificate does not create it
            cluster = await caller.send("GET", f"{cloudevents.CLUSTERS.path}/{event.cluster}")
            if cluster.is_error:
                return cluster
        return await caller.send(asked.method, asked.path, asked.body)

    async def subscribe(self, raw: bytes, context: Context) -> None:
        """Send the objects of a type and their changes until one side ends the stream."""
        async with self._call("Subscribe", context) as relay:
            data_type, cluster = cloudevents.parse_subscription(_decoded(cloudevents.SubscriptionRequest, raw))
            self._cordon.check()
            caller = ApiCaller(
                self._server, relay.shown, _metadata(context), lambda: relay.end("the credential or its rights have ended")
            )
            subscription = Subscription(caller, data_type, cluster, self._clock)
            await subscription.begin()
            relay.permitted = True
            await context.send_initial_metadata((("subscription-id", str(uuid4())),))
            with self._entered(relay, subscription):
                following = asyncio.create_task(subscription.run(), name="ocm subscription")
                try:
                    while True:
                        await _write(relay, context, await subscription.next())
                finally:
                    following.cancel()
                    await asyncio.wait((following,))

    @contextmanager
    def _entered(self, relay: Relay, subscription: Subscription) -> Iterator[None]:
        """While the block runs, calls of the agent can push events to the subscription."""
        members = self._open.setdefault(subscription.key, set())
        members.add(subscription)
        relay.subscriptions.add(subscription)
        try:
            yield
        finally:
            relay.subscriptions.discard(subscription)
            members.discard(subscription)
            if not members:
                self._open.pop(subscription.key, None)

    @asynccontextmanager
    async def _call(self, method: str, context: Context) -> AsyncIterator[Relay]:
        """Yield the relay of the call, count the call, and turn errors of the block into the call's status."""
        relay: Relay | None = None
        try:
            with self._gate:
                relay = self._relays.of(context.peer())
                yield relay
        except Exception as error:  # noqa: BLE001 - every failure becomes the call's status
            self.counts.ended(method, error)
            if isinstance(error, UnauthorizedError) and relay is not None:
                relay.end(error.message)  # the agent connects again, with its newest certificate
            _set_status(context, error)
        except BaseException as error:
            self.counts.ended(method, error)
            raise
        else:
            self.counts.ended(method, None)


def _decoded(kind: Any, raw: bytes) -> Any:
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise BadRequestError("the message cannot be decoded") from None


def _metadata(context: Context) -> Mapping[str, str]:
    return {name: text for name, text in context.invocation_metadata() or () if isinstance(text, str)}


@contextmanager
def _held(followers: Iterable[Subscription]) -> Iterator[None]:
    """A block around a call: these subscriptions send no events before its answer."""
    for each in followers:
        each.hold()
    try:
        yield
    finally:
        for each in followers:
            each.release()


async def _write(relay: Relay, context: Context, event: bytes) -> None:
    """Send an event. If the agent does not read, close the connection (no status would reach it) and raise UnavailableError."""
    try:
        async with asyncio.timeout(WRITE_TIMEOUT.total_seconds()):
            await context.write(event)
    except TimeoutError:
        relay.abort()
        raise UnavailableError("the agent does not read") from None


def _set_status(context: Context, error: Exception) -> None:
    """Let the call end with the status of an error, like `hub.grpc_door.errors.set_status`.

    The text is a Kubernetes Status if OCM's agents expect one.
    """
    code, text = grpc.StatusCode.UNAVAILABLE, "internal error"
    if isinstance(error, MusterError):
        code, text = _CODES.get(error.reason, grpc.StatusCode.FAILED_PRECONDITION), error.message[:LONGEST_MESSAGE]
        if code is grpc.StatusCode.PERMISSION_DENIED:
            text = f"access denied: {text}"
        elif code is not grpc.StatusCode.UNAUTHENTICATED:
            status = {**status_document(error), "message": text, "details": {}}
            text = msgspec.json.encode({"ErrStatus": status}).decode()
    else:
        log.error("call failed", exc_info=error)
    context.set_code(code)
    context.set_details(text)
    error.__traceback__ = None
