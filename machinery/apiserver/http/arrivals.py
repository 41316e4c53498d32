"""A connection from its acceptance to the end of its TLS handshake, counted by address before any byte is parsed."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import structlog
from aiohttp.web import RequestHandler

from machinery.apiserver.http.connections import Connections, ConnectionSlot, Guard
from machinery.apiserver.http.proxy_protocol import is_within, read_header

log = structlog.get_logger(__name__)


class Forwarded:
    """A transport whose peer name is the client address from a PROXY header; everything else is delegated."""

    def __init__(self, transport: asyncio.Transport, address: str) -> None:
        self._transport = transport
        self._address = address

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._address, 0) if name == "peername" else self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Arrival(asyncio.Protocol):
    """Reads the PROXY header of a trusted peer, does the TLS handshake, and hands the connection over to a Guard."""

    def __init__(self, connections: Connections, factory: Callable[[], RequestHandler], context: ssl.SSLContext | None) -> None:
        self._connections = connections
        self._factory = factory
        self._context = context
        self._transport: asyncio.Transport | None = None
        self._place: ConnectionSlot | None = None
        self._address = ""
        self._forwarded = False
        self._early = b""
        self._ended = self._lost = False
        self._deadline: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream server makes no others
        self._transport = transport
        self._connections.arriving.add(self)
        name = transport.get_extra_info("peername")
        self._address = str(name[0]) if isinstance(name, tuple) else ""
        if is_within(self._address, self._connections.bounds.proxies):
            seconds = self._connections.bounds.handshake.total_seconds()
            self._deadline = asyncio.get_running_loop().call_later(seconds, transport.abort)
        else:
            self._enter(transport)

    def data_received(self, data: bytes) -> None:
        self._early += data
        if self._place is not None or self._transport is None:
            return
        try:
            header = read_header(self._early)
        except ValueError as error:
            log.info("a connection with a malformed PROXY header is closed", peer=self._address, error=str(error))
            self._transport.abort()
            return
        if header is None:
            return
        if header.address:
            self._address, self._forwarded = header.address, True
        self._early = self._early[header.length :]
        self._enter(self._transport)

    def eof_received(self) -> None:
        self._ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._lost = True
        self._leave()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _enter(self, transport: asyncio.Transport) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._place = self._connections.admit(self._address)
        if self._place is None:
            transport.abort()
        elif self._context is None:
            self._hand_over(transport)
        else:
            transport.pause_reading()
            self._handshake = asyncio.get_running_loop().create_task(self._secure(transport, self._context), name="handshake")

    async def _secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        early, self._early = self._early, b""
        if early:  # after the TLS protocol has its transport and before the transport is read again
            loop.call_soon(loop.call_soon, _feed, transport, early)
        seconds = self._connections.bounds.handshake.total_seconds()
        try:
            secured = await loop.start_tls(transport, self, context, server_side=True, ssl_handshake_timeout=seconds)
        except OSError as error:
            log.debug("a TLS handshake failed", peer=self._address, error=str(error))
            self._leave()
            return
        except BaseException:
            self._leave()
            raise
        if secured is None:  # the connection was aborted during the handshake, for example by a stop
            self._leave()
        else:
            self._hand_over(secured)

    def _hand_over(self, transport: asyncio.Transport) -> None:
        assert self._place is not None  # noqa: S101 - it has entered
        self._connections.arriving.discard(self)
        shown = Forwarded(transport, self._address) if self._forwarded else transport
        guard = Guard(self._factory(), self._connections, self._place, shown)
        transport.set_protocol(guard)
        guard.connection_made(transport)
        if self._early:
            guard.data_received(self._early)
        if self._ended:
            guard.eof_received()
        if self._lost:
            guard.connection_lost(None)

    def _leave(self) -> None:
        self._connections.arriving.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._place is not None:
            self._place.leave()


def _feed(transport: asyncio.Transport, data: bytes) -> None:
    """Pass bytes that were read before the handshake to the TLS protocol of a transport."""
    protocol = transport.get_protocol()
    assert isinstance(protocol, asyncio.BufferedProtocol)  # noqa: S101 - asyncio's TLS
    while data:
        buffer = memoryview(protocol.get_buffer(len(data)))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
