"""The gRPC server with mutual TLS: its services, start, drain and close."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import cast

import grpc
import structlog
from grpc import aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from hub.grpc_door.errors import RegistrationInterceptor
from hub.grpc_door.health import HealthService
from hub.grpc_door.registration.servicer import RegistrationService
from hub.grpc_door.session.context import DoorContext
from hub.grpc_door.session.servicer import SessionServicer
from machinery.apiserver.http.connections import most_connections
from machinery.apiserver.http.limits import BODY_LIMIT
from machinery.errors import UnavailableError
from machinery.lifecycle.server import Door
from machinery.lifecycle.startup import bind_error, listening_failed
from machinery.runtime.event_loop import drain_rate, paced
from machinery.runtime.tls import Material, Serving
from machinery.wire.registration.v1.registration_pb2_grpc import add_RegistrationServicer_to_server

TO_LEAVE = timedelta(seconds=1)
"""Time for which an agent may continue its session after Drain, while it opens another session."""
PACED_SHARE = 0.8
"""Share of the drain's time in which sessions are ended evenly. The rest is a margin for a busy hub."""
QUIET_TIMEOUT = timedelta(seconds=1.5)
LONGEST_CALL = timedelta(seconds=60)
HANDSHAKE = timedelta(seconds=10)
"""Time limit from the connection to the end of the TLS handshake and the client's HTTP/2 settings."""
IDLE = timedelta(minutes=5)
"""Time for which a connection without a call stays open. Agents with a session are not idle; other clients reconnect."""

OPTIONS = (
    # gRPC's default is 1: a second hub could then bind this port without an error, and would get half of the agents.
    ("grpc.so_reuseport", 0),
    # Agents ping more often than the hub, to detect a lost hub. The hub's pings only detect lost agents, which missing beats
    # also show. The hub pings less often than an agent beats: otherwise the pings would cost more than the beats.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", BODY_LIMIT),
    # The probe measures the bandwidth with a ping per heartbeat. Nothing uses the result, and the pings double the cost of a
    # heartbeat.
    ("grpc.http2.bdp_probe", 0),
    # Buffers of each connection: one TLS record (16 KiB by default), and a table for the compression of request headers (4 KiB
    # by default). A beat has 100 bytes, and a session is one call.
    ("grpc.tsi.max_frame_size", 2_048),
    ("grpc.http2.hpack_table_size.decoder", 512),
)

log = structlog.get_logger(__name__)


class RpcDoor(Door):
    """The gRPC server. The loops of `parts` (feed, sessions, beats, peers) must run while it serves."""

    name = "grpc"

    def __init__(self, host: str, port: int, serving: Serving, parts: DoorContext) -> None:
        self._host = f"[{host}]" if ":" in host else host
        self._port = port
        self._serving = serving
        self._parts = parts
        self._registration = RegistrationService(parts)
        self._connecting = SessionServicer(parts)
        self._health = HealthService()
        self._server: aio.Server | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port of the listener, after `start`."""
        return self._port

    async def start(self) -> None:
        server = aio.server(
            interceptors=(RegistrationInterceptor(),), options=(*OPTIONS, *_connection_bounds(), *self._parts.age.options)
        )
        add_RegistrationServicer_to_server(self._registration, server)
        server.add_generic_rpc_handlers((self._connecting.service(),))
        add_HealthServicer_to_server(self._health, server)  # type: ignore[no-untyped-call]
        address = f"{self._host}:{self._port}"
        try:
            self._port = server.add_secure_port(address, credentials_of(self._serving))
        except RuntimeError as error:
            reason = bind_error(self._host.strip("[]"), self._port)
            raise listening_failed("grpc_listen", self._host, self._port, reason) from error
        await server.start()
        self._server = server
        log.info("gRPC door open", address=f"{self._host}:{self._port}")

    async def set_ready(self, *, ready: bool) -> None:
        await self._health.set_serving(serving=ready)

    async def refuse(self) -> None:
        """Answers new calls with UNAVAILABLE and a retry delay. Reports NOT_SERVING and ends health watches."""
        self._parts.gate.close()
        self._connecting.stop_waiting()
        await self._health.stop()

    async def stop_listening(self) -> None:
        """Stops the listener. The hub first answers the calls that it has received, which gRPC would end with CANCELLED."""
        await self.refuse()
        if self._server is not None and self._stopping is None:
            await self._parts.gate.still(QUIET_TIMEOUT)
            self._stopping = asyncio.create_task(self._server.stop(LONGEST_CALL.total_seconds()), name="grpc stop")
            await asyncio.sleep(0)

    async def drain(self, grace: timedelta) -> None:
        """Ends sessions and other streams at a bounded rate. Waits until calls have ended, and a limited time for new calls."""
        log.info("sessions are ended", count=len(self._parts.sessions), within_seconds=grace.total_seconds())
        try:
            async with asyncio.timeout(grace.total_seconds()):
                await self._end_evenly(grace - TO_LEAVE)
        except TimeoutError:
            log.warning("sessions did not end in time", count=len(self._parts.sessions))
        self._end_all()
        await self._parts.gate.quiet()
        await self._parts.gate.still(QUIET_TIMEOUT)
        await self._parts.sessions.write()

    async def _end_evenly(self, grace: timedelta) -> None:
        """Sends Drain to each session and ends it `TO_LEAVE` later. Returns when no session is open."""
        sessions, following = self._parts.sessions.all(), self._registration.follower.following()
        rate = drain_rate(len(sessions) + len(following), grace * PACED_SHARE)
        loop = asyncio.get_running_loop()
        async for session in paced(sessions, rate):
            session.drain(TO_LEAVE / 2)
            loop.call_later(TO_LEAVE.total_seconds(), session.end, _shutdown_error())
        async for woken in paced(following, rate):
            woken.set()
        await self._parts.sessions.none()

    def _end_all(self) -> None:
        for session in self._parts.sessions.all():
            session.end(_shutdown_error())
        for woken in self._registration.follower.following():
            woken.set()

    async def close(self, grace: timedelta) -> None:
        if self._server is not None:
            await self.refuse()
            self._end_all()
            await self._server.stop(grace.total_seconds())
            # The server forgets handlers that were aborted, but they may still write to the store.
            await self._parts.gate.quiet()
            if self._stopping is not None:
                await self._stopping
            self._server = None


def credentials_of(serving: Serving) -> grpc.ServerCredentials:
    """Return credentials that follow certificate rotation. A C core thread calls `newest` at each handshake: keep it fast."""
    shown = serving.material
    configuration = _configuration(shown)

    def newest() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown, configuration
        if serving.material is shown:
            return None
        shown = serving.material
        configuration = _configuration(shown)
        return configuration

    fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", newest)  # the stubs do not allow None (unchanged)
    return grpc.dynamic_ssl_server_credentials(configuration, fetch, require_client_authentication=True)


def _connection_bounds() -> tuple[tuple[str, int], ...]:
    """Connection limits of the gRPC server, which supports no limit per client address."""
    millisecond = timedelta(milliseconds=1)
    return (
        ("grpc.server_handshake_timeout_ms", HANDSHAKE // millisecond),
        ("grpc.max_connection_idle_ms", IDLE // millisecond),
        ("grpc.max_allowed_incoming_connections", most_connections()),
    )


def _shutdown_error() -> UnavailableError:
    return UnavailableError("this hub is shutting down", retry_after=timedelta(seconds=1))


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.trust)
