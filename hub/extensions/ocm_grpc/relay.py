"""TLS with an optional client certificate, in front of a gRPC server without TLS on the loopback address.

gRPC in Python either requires a client certificate or does not request one. Therefore the relay terminates TLS: it opens an
inner connection to the gRPC server for each agent's connection, and passes on all decrypted bytes. The source port of the inner
connection identifies the agent's connection. The gRPC server refuses calls from all other ports, which come from other local
programs.
"""

import asyncio
import ssl
from collections import OrderedDict
from contextlib import suppress

import structlog

from hub.extensions.ocm_grpc.subscriptions import Subscription
from machinery.apiserver.http.connections import Connections
from machinery.apiserver.http.limits import Seat
from machinery.errors import UnauthorizedError
from machinery.runtime.tls import Serving, server_context

LOOPBACK = "127.0.0.1"
STRANGER_BYTES = 256 * 1024
"""Bytes that a connection may send before one of its calls is permitted: enough for a join."""
REUSE_AFTER = 60.0
"""Seconds for which the source port of an ended connection is not used again, because a call may still wait for its handler."""
MOST_ATTEMPTS = 16
END_AFTER = 1.0
"""Seconds in which the hub sends the last answers before it ends a connection."""

log = structlog.get_logger(__name__)


def relay_context(serving: Serving) -> ssl.SSLContext:
    """Return a context for TLS 1.3 and HTTP/2. Each handshake uses the current certificate and CAs of the doors."""

    def fresh() -> ssl.SSLContext:
        context = server_context(serving.material)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["h2"])
        return context

    shown, newest, context = serving.material, fresh(), fresh()

    def hand_on(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal shown, newest
        if serving.material is not shown:
            shown, newest = serving.material, fresh()
        connection.context = newest

    context.sni_callback = hand_on
    return context


class Relays:
    """The open relays, by source port of the inner connection. `port`: the gRPC server's port, set when this server listens."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.port = 0
        self._by_port: dict[int, Relay] = {}
        self._left: OrderedDict[int, float] = OrderedDict()
        """The time at which a connection ended, by the source port of this connection."""

    def __len__(self) -> int:
        return len(self._by_port)

    def all(self) -> list["Relay"]:
        return list(self._by_port.values())

    def of(self, peer: str) -> "Relay":
        """Return the relay of a peer such as `ipv4:127.0.0.1:40112`. Raises UnauthorizedError if the peer is no relay."""
        host, _, port = peer.removeprefix("ipv4:").rpartition(":")
        relay = self._by_port.get(int(port)) if host == LOOPBACK and port.isdecimal() else None
        if relay is None:
            raise UnauthorizedError("this port is internal to the hub")
        return relay

    async def connect(self, relay: "Relay") -> asyncio.Transport:
        """Connect to the gRPC server from a port that identifies no other connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        others: list[asyncio.Transport] = []
        try:
            for _ in range(MOST_ATTEMPTS):
                transport, _protocol = await loop.create_connection(lambda: _Inner(relay), LOOPBACK, self.port)
                port = transport.get_extra_info("sockname")[1]
                while self._left and next(iter(self._left.values())) < loop.time() - REUSE_AFTER:
                    self._left.popitem(last=False)
                if port not in self._left:
                    self._by_port[port] = relay
                    return transport
                others.append(transport)  # kept open, so that the next connection gets another port
            raise OSError("no unused port")
        finally:
            for each in others:
                each.abort()

    def forget(self, inner: asyncio.Transport) -> None:
        """Forget an inner connection that has ended."""
        port = inner.get_extra_info("sockname")[1]
        if self._by_port.pop(port, None) is not None:
            self._left[port] = asyncio.get_running_loop().time()


class Relay(asyncio.Protocol):
    """The TLS connection of an agent, which passes its bytes on to the gRPC server."""

    _transport: asyncio.Transport

    def __init__(self, relays: Relays, place: Seat, shown: asyncio.Transport) -> None:
        """`shown`: a transport with the agent's address and certificate."""
        self.shown = shown
        self.permitted = False
        """Whether a call of this connection was permitted."""
        self.subscriptions: set[Subscription] = set()
        self._relays = relays
        self._place = place
        self._received = 0
        self._early = b""
        self._inner: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream server makes no others
        self._transport = transport
        transport.pause_reading()
        self._relays.connections.opened(self)
        self._connecting = asyncio.get_running_loop().create_task(self._connect(transport), name="ocm relay")

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._lost = True
        self._place.leave()
        self._relays.connections.closed(self)
        if self._inner is not None:
            self._inner.abort()
        for each in tuple(self.subscriptions):
            each.end("the connection has ended")

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if not self.permitted and self._received > STRANGER_BYTES:
            log.info("connection closed: it sent too much before a permitted call", peer=self._address)
            self.abort()
        elif self._inner is None:
            self._early += data  # read together with the end of the handshake
        else:
            self._inner.write(data)

    def eof_received(self) -> None:
        """Close: an agent that has ended its side reads no answer."""

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_reading()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_reading()

    def end(self, why: str) -> None:
        """End all streams with UNAVAILABLE, then the connection, so that the agent connects again."""
        for each in tuple(self.subscriptions):
            each.end(why)
        asyncio.get_running_loop().call_later(END_AFTER, self.leave)

    def leave(self) -> None:
        """Close the connection after all written bytes are sent."""
        self._transport.close()

    def abort(self) -> None:
        with suppress(AttributeError):  # Python 3.11.2 fails for a TLS transport that is closed
            self._transport.abort()

    @property
    def _address(self) -> str:
        name = self.shown.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else ""

    async def _connect(self, transport: asyncio.Transport) -> None:
        try:
            inner = await self._relays.connect(self)
        except OSError as error:
            log.warning("a connection of an agent cannot be passed to the gRPC server", error=str(error))
            self.abort()
            return
        self._inner = inner
        if self._lost:
            inner.abort()
            return
        early, self._early = self._early, b""
        inner.write(early)
        transport.resume_reading()

    def passed_back(self, data: bytes) -> None:
        if not self._lost:
            self._transport.write(data)

    def pause_agent(self, *, paused: bool) -> None:
        """Stop reading from the agent (`paused`) or read again, so that the hub reads only as fast as the gRPC server."""
        if not self._transport.is_closing():
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    def server_lost(self, inner: asyncio.Transport) -> None:
        self._relays.forget(inner)
        if self._inner is inner:
            self.leave()


class _Inner(asyncio.Protocol):
    """The connection of a relay to the gRPC server."""

    _transport: asyncio.Transport

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - as above
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._relay.passed_back(data)

    def pause_writing(self) -> None:
        self._relay.pause_agent(paused=True)

    def resume_writing(self) -> None:
        self._relay.pause_agent(paused=False)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._relay.server_lost(self._transport)
