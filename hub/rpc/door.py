"""The listener: a gRPC server on mutual TLS with this door's services, and its life from start to close."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import cast

import grpc
import structlog
from grpc import aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from hub.rpc.connecting import Connecting
from hub.rpc.health import Health
from hub.rpc.parts import Parts
from hub.rpc.registration import Registration
from machinery.errors import UnavailableError
from machinery.lifecycle.listening import bind_error, listening_failed
from machinery.lifecycle.server import Door
from machinery.tls import Material, Serving
from machinery.wire.registration.v1.registration_pb2_grpc import add_RegistrationServicer_to_server

MAX_MESSAGE = 1024 * 1024
GRACE = timedelta(seconds=1)
DRAINED_WITHIN = timedelta(seconds=5)
MIN_DRAIN_RATE = 200
"""Sessions ended per second, at least: the other replicas, or this one after its restart, must take them all."""

OPTIONS = (
    # On by default: a second hub on this port would bind in silence and steal half of the agents.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 300_000),
    # A ping with every heartbeat to measure a bandwidth that nobody needs: it doubled the cost of one.
    ("grpc.http2.bdp_probe", 0),
)

log = structlog.get_logger(__name__)


class RpcDoor(Door):
    """`parts` and their loops (feed, sessions, beats, peers) must run while it serves."""

    name = "grpc"

    def __init__(self, host: str, port: int, serving: Serving, parts: Parts) -> None:
        self._host = f"[{host}]" if ":" in host else host
        self._port = port
        self._serving = serving
        self._parts = parts
        self._registration = Registration(parts)
        self._connecting = Connecting(parts)
        self._health = Health()
        self._server: aio.Server | None = None

    @property
    def port(self) -> int:
        """The port that is listened on, once started."""
        return self._port

    async def start(self) -> None:
        server = aio.server(options=OPTIONS)
        add_RegistrationServicer_to_server(self._registration, server)
        server.add_generic_rpc_handlers((self._connecting.service(),))
        add_HealthServicer_to_server(self._health, server)  # type: ignore[no-untyped-call]
        address = f"{self._host}:{self._port}"
        try:
            self._port = server.add_secure_port(address, self._credentials())
        except RuntimeError as error:
            raise listening_failed(
                "grpc_listen", self._host, self._port, bind_error(self._host.strip("[]"), self._port)
            ) from error
        await server.start()
        self._server = server
        await self._health.set_serving(serving=True)
        log.info("gRPC door open", address=f"{self._host}:{self._port}")

    async def fall(self) -> None:
        """Says NOT_SERVING to who asks for its health, and serves on: who balances load shall notice in time."""
        await self._health.set_serving(serving=False)

    async def refuse(self) -> None:
        self._parts.gate.close()
        await self._health.stop()
        for session in self._parts.sessions.all():
            session.drain(timedelta())

    async def drain(self) -> None:
        """Ends sessions at a bounded rate, lets calls finish, and waits until nothing new comes."""
        self._registration.stop_following()
        sessions = self._parts.sessions.all()
        rate = max(MIN_DRAIN_RATE, len(sessions) / DRAINED_WITHIN.total_seconds())
        for count, session in enumerate(sessions, 1):
            session.end(UnavailableError("this hub is shutting down", retry_after=timedelta(seconds=1)))
            if count % (MIN_DRAIN_RATE // 10) == 0:
                await asyncio.sleep(MIN_DRAIN_RATE / 10 / rate)
        await self._parts.gate.quiet()
        await self._parts.sessions.write()

    async def close(self) -> None:
        if self._server is not None:
            self._parts.gate.close()
            for session in self._parts.sessions.all():
                session.end(UnavailableError("this hub is shutting down"))
            await self._server.stop(GRACE.total_seconds())
            # The server forgets handlers that were aborted; what they still write needs the store open.
            await self._parts.gate.quiet()
            self._server = None

    def _credentials(self) -> grpc.ServerCredentials:
        """Asked for at every handshake on a thread of the core, hence only a comparison there."""
        shown = self._serving.material
        configuration = _configuration(shown)

        def newest() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown, configuration
            if self._serving.material is shown:
                return None
            shown = self._serving.material
            configuration = _configuration(shown)
            return configuration

        fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", newest)  # None, "as before", is unknown to the stubs
        return grpc.dynamic_ssl_server_credentials(configuration, fetch, require_client_authentication=True)


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], material.trust)
