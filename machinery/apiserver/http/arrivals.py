"""A connection from accept to the end of its TLS handshake. It is counted by address before the handshake.

Behind a load balancer the client's address comes from a PROXY protocol header, version 1 or 2 (source:
https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt). Type-length-values of version 2 are skipped.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, cast

import structlog

from machinery.apiserver.http.connections import Connections
from machinery.apiserver.http.limits import Seat

LINE = b"PROXY "
MAX_LINE = 107
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FIXED_SIZE = len(SIGNATURE) + 4
MAX_HEADER = 2048
"""Longest accepted header of version 2 in bytes; the protocol allows 64 KiB."""
LOCAL, PROXIED = 0x20, 0x21
ADDRESSES: dict[int, tuple[type[IPv4Address | IPv6Address], int]] = {0x11: (IPv4Address, 4), 0x21: (IPv6Address, 16)}
"""Address type and its size in bytes, by the protocol byte of a version 2 header: TCP over IPv4, TCP over IPv6."""


def is_within(address: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    """Whether an address is in one of the networks; an IPv4-mapped IPv6 address counts as IPv4."""
    try:
        there = ip_address(address)
    except ValueError:
        return False
    there = getattr(there, "ipv4_mapped", None) or there
    return any(there in each for each in networks)


def read_header(data: bytes) -> tuple[str, int] | None:
    """Return client address and length in bytes of the header at the start of `data`; None if more bytes are needed.

    The address is "" if it is unknown, or if the connection is a health check of the load balancer. The length is 0 if there is
    no header. Raises ValueError if the header is malformed or too long.
    """
    for begin, read in ((LINE, _line), (SIGNATURE, _binary)):
        if data[: len(begin)] == begin[: len(data)]:
            return read(data) if len(data) >= len(begin) else None
    return "", 0


def _line(data: bytes) -> tuple[str, int] | None:
    end = data.find(b"\r\n", 0, MAX_LINE)
    if end < 0:
        if len(data) >= MAX_LINE:
            raise ValueError("the line does not end")
        return None
    words = data[len(LINE) : end].decode("ascii").split(" ")
    if words[0] == "UNKNOWN":
        return "", end + 2
    protocol, source, destination, *ports = words
    kind = {"TCP4": IPv4Address, "TCP6": IPv6Address}.get(protocol)
    if kind is None or len(ports) != 2 or not all(port.isdecimal() for port in ports):  # noqa: PLR2004 - of both ends
        raise ValueError("the line is malformed")
    kind(destination)
    return str(kind(source)), end + 2


def _binary(data: bytes) -> tuple[str, int] | None:
    if len(data) < FIXED_SIZE:
        return None
    command, family = data[len(SIGNATURE)], data[len(SIGNATURE) + 1]
    length = FIXED_SIZE + int.from_bytes(data[FIXED_SIZE - 2 : FIXED_SIZE])
    if command not in {LOCAL, PROXIED} or length > MAX_HEADER:
        raise ValueError("the header is of another version or too long")
    if len(data) < length:
        return None
    if command == LOCAL or family not in ADDRESSES:
        return "", length
    kind, size = ADDRESSES[family]
    if length < FIXED_SIZE + 2 * size + 4:
        raise ValueError("the header contains no addresses")
    return str(kind(data[FIXED_SIZE : FIXED_SIZE + size])), length


log = structlog.get_logger(__name__)


class Forwarded:
    """A transport whose peer name is the client address from a PROXY header. It delegates all other calls."""

    def __init__(self, transport: asyncio.Transport, address: str) -> None:
        self._transport = transport
        self._address = address

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._address, 0) if name == "peername" else self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


ProtocolFactory = Callable[[Seat, asyncio.Transport], asyncio.Protocol]
"""Creates the protocol of a connection from its Seat (see `Connections.admit`) and a transport with the client's address."""


class Arrival(asyncio.Protocol):
    """Reads the PROXY header of an address in `proxies`, performs a TLS handshake, and passes the connection on."""

    def __init__(self, connections: Connections, factory: ProtocolFactory, context: ssl.SSLContext | None) -> None:
        self._connections = connections
        self._factory = factory
        self._context = context
        self._transport: asyncio.Transport | None = None
        self._place: Seat | None = None
        self._address = ""
        self._forwarded = False
        self._early = b""
        self._ended = self._lost = False
        self._deadline: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream server makes no others
        self._transport = transport
        self._connections.arriving.add(transport)
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
        address, length = header
        if address:
            self._address, self._forwarded = address, True
        self._early = self._early[length:]
        self._enter(self._transport)

    def eof_received(self) -> None:
        self._ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._lost = True
        self._leave()

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
            secured = None
        except BaseException:
            self._leave()
            raise
        if secured is None:  # also when the connection was aborted during the handshake, for example by a stop
            self._leave()
        else:
            self._hand_over(secured)

    def _hand_over(self, transport: asyncio.Transport) -> None:
        assert self._place is not None  # noqa: S101 - it has entered
        assert self._transport is not None  # noqa: S101 - so it has a transport
        self._connections.arriving.discard(self._transport)
        shown = cast("asyncio.Transport", Forwarded(transport, self._address)) if self._forwarded else transport
        protocol = self._factory(self._place, shown)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._early:
            protocol.data_received(self._early)
        if self._ended:
            protocol.eof_received()
        if self._lost:
            protocol.connection_lost(None)

    def _leave(self) -> None:
        if self._transport is not None:
            self._connections.arriving.discard(self._transport)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._place is not None:
            self._place.leave()


def _feed(transport: asyncio.Transport, data: bytes) -> None:
    """Pass bytes that were read before the TLS handshake to the TLS protocol of a transport."""
    protocol = transport.get_protocol()
    assert isinstance(protocol, asyncio.BufferedProtocol)  # noqa: S101 - asyncio's TLS
    while data:
        buffer = memoryview(protocol.get_buffer(len(data)))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
