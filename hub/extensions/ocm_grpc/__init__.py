"""A door for OCM's agents with the registration driver `grpc` (CloudEvents over gRPC), off by default (ADR 0001).

It translates events to requests of the Kubernetes API, and watches to events; all rules are those of the HTTPS door.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from ipaddress import ip_network

import structlog
from grpc import aio

from hub.composition.core import HubCore
from hub.extensions.ocm_grpc.cloudevents import heartbeat_event
from hub.extensions.ocm_grpc.relay import LOOPBACK, Relay, Relays, relay_context
from hub.extensions.ocm_grpc.service import EventService
from hub.extensions.settings import OcmGrpcSettings
from hub.grpc_door.gate import Gate
from hub.grpc_door.server import OPTIONS
from hub.grpc_door.session.drain import Age, Cordon
from hub.https_door.server import HttpsServer
from hub.metrics.doors import add_ocm_grpc
from hub.settings.fields import Address
from machinery.apiserver.http.arrivals import Arrival
from machinery.apiserver.http.connections import ConnectionBounds, Connections, most_connections
from machinery.apiserver.http.filters import Draining
from machinery.apiserver.http.listener import TCP_BACKLOG
from machinery.apiserver.server import ApiServer
from machinery.errors import InvalidError
from machinery.lifecycle.server import Door
from machinery.lifecycle.startup import listening_failed
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import drain_rate, paced, until_tick
from machinery.runtime.tls import Serving

DESCRIPTORS = 3
"""File descriptors per connection: one for the agent's connection, two for the ends of the inner connection."""
HEARTBEAT_PERIOD = timedelta(seconds=10)
CORDON_PERIOD = timedelta(seconds=1)
PACED_SHARE = 0.8
"""Share of a drain's time in which connections are ended evenly."""
LONGEST_METADATA = 16 * 1024
MAX_CALLS = 64
"""Largest number of concurrent calls of one connection. An agent uses about six."""
IDLE = timedelta(minutes=30)

log = structlog.get_logger(__name__)


async def install(core: HubCore) -> None:
    """Add the door if it has an address. Raises InvalidError if the hub's API groups do not have OCM's suffix."""
    settings = core.context.settings
    if not isinstance(settings, OcmGrpcSettings) or settings.ocm_grpc_listen is None:
        return
    if settings.api_group_suffix != GROUP_SUFFIX:
        raise InvalidError(f"ocm_grpc_listen needs api_group_suffix={GROUP_SUFFIX}: OCM's agents use no other API groups")
    core.more_doors.append(partial(_add_door, core, settings.ocm_grpc_listen))


def _add_door(core: HubCore, address: Address, cordon: Cordon, https: HttpsServer, _draining: Draining) -> None:
    context, settings = core.context, core.context.settings
    door = OcmGrpcDoor(
        address,
        core.certificates.doors.serving,
        https.server,
        cordon=cordon,
        age=Age(settings.connection_age, settings.connection_age_grace),
        bounds=ConnectionBounds(
            connections=most_connections() // DESCRIPTORS,
            each=settings.max_connections_per_address,
            proxies=tuple(map(ip_network, settings.https_proxies)),
        ),
        clock=context.clock,
    )
    context.server.add_door(door)
    context.add_task("ocm grpc", door.run)
    context.inspection.add(
        "ocm grpc", lambda: {"connections": len(door.relays), "inner port": door.relays.port, **door.open_subscriptions()}
    )
    add_ocm_grpc(context.metrics, door.service.counts, door.relays.__len__, door.open_subscriptions)


class OcmGrpcDoor(Door):
    """The door for OCM's agents. `run` must run while the door serves."""

    name = "ocm-grpc"

    def __init__(
        self,
        address: Address,
        serving: Serving,
        server: ApiServer,
        *,
        cordon: Cordon,
        age: Age,
        bounds: ConnectionBounds,
        clock: Clock,
    ) -> None:
        self.relays = Relays(Connections(bounds))
        self._gate = Gate(clock)
        self.service = EventService(server, self.relays, cordon, self._gate, clock)
        self._address = address
        self._serving = serving
        self._cordon = cordon
        self._age = age
        self._inner: aio.Server | None = None
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen and serve. Raises StartError if it cannot listen on the address."""
        self._inner = aio.server(options=(*OPTIONS, *_inner_options(), *self._age.options))
        self._inner.add_generic_rpc_handlers((self.service.handler(),))
        self.relays.port = self._inner.add_insecure_port(f"{LOOPBACK}:0")
        await self._inner.start()
        context, relay = relay_context(self._serving), partial(Relay, self.relays)
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: Arrival(self.relays.connections, relay, context),
                self._address.host,
                self._address.port,
                backlog=TCP_BACKLOG,
                reuse_port=False,
            )
        except OSError as error:
            raise listening_failed("ocm_grpc_listen", self._address.host, self._address.port, error) from error
        log.info("door of OCM's gRPC agents open", address=str(self._address))

    async def set_ready(self, *, ready: bool) -> None:
        """Do nothing: this door has no health protocol."""

    async def refuse(self) -> None:
        self._gate.close()

    async def stop_listening(self) -> None:
        await self.refuse()
        if self._listener is not None:
            self._listener.close()

    async def drain(self, grace: timedelta) -> None:
        await self._end_evenly("this hub is shutting down", grace)
        await self._gate.quiet()

    async def close(self, grace: timedelta) -> None:
        await self.stop_listening()
        self.relays.connections.abort()  # first: the gRPC server would end streams with CANCELLED, after which agents wait
        if self._inner is not None:
            await self._inner.stop(grace.total_seconds())
            await self._gate.quiet()

    async def run(self) -> None:
        """Send heartbeats, and end connections when this replica is cordoned, until cancelled."""
        loop = asyncio.get_running_loop()
        cordoned, beaten_at = False, loop.time()
        while True:
            await asyncio.sleep(until_tick(CORDON_PERIOD))
            if self._cordon.closed and not cordoned:
                await self._end_evenly("this replica of the hub is drained", self._age.grace)
            cordoned = self._cordon.closed
            if loop.time() >= beaten_at + HEARTBEAT_PERIOD.total_seconds():
                beaten_at, heartbeat = loop.time(), heartbeat_event()
                for each in self.service.all():
                    each.beat(heartbeat)

    def open_subscriptions(self) -> Mapping[str, int]:
        """Number of open subscriptions by data type."""
        return Counter(each.data_type.name for each in self.service.all())

    async def _end_evenly(self, why: str, grace: timedelta) -> None:
        """End all connections at the lowest rate that is fast enough."""
        relays = self.relays.all()
        async for relay in paced(relays, drain_rate(len(relays), grace * PACED_SHARE)):
            relay.end(why)


def _inner_options() -> tuple[tuple[str, int], ...]:
    """Options of the gRPC server, whose only client is the relay."""
    millisecond = timedelta(milliseconds=1)
    return (
        ("grpc.max_concurrent_streams", MAX_CALLS),
        ("grpc.max_metadata_size", LONGEST_METADATA),
        ("grpc.absolute_max_metadata_size", LONGEST_METADATA),
        ("grpc.max_connection_idle_ms", IDLE // millisecond),
        ("grpc.http2.max_ping_strikes", 0),  # Go's clients ping to measure the bandwidth
        ("grpc.max_allowed_incoming_connections", most_connections()),
    )
