"""Bounds of a listener's connections: deadlines and sizes of headers, number of connections.

aiohttp closes idle connections, but has no deadline for headers and no bound for their total size (measured in 3.14). Therefore
a Guard wraps each protocol of aiohttp and reads the same bytes. The deadline of the request limits the time for its body.
"""

import asyncio
import resource
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from typing import Protocol

import structlog
from aiohttp.web import RequestHandler

from machinery.apiserver.http.limits import Seat, origin

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    b"431 Request Header Fields Too Large"
)

Networks = tuple[IPv4Network | IPv6Network, ...]

LINGER = 0.5
LOG_PERIOD = 10.0
"""Least time in seconds between two log entries about the same limit, such as the number of connections."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Bounds per connection and per listener."""

    handshake: timedelta = timedelta(seconds=10)
    """Time limit of the TLS handshake, and of a PROXY header."""
    header: timedelta = timedelta(seconds=32)
    """Time limit for headers. It begins with the connection; for a later request, with its first byte."""
    idle: timedelta = timedelta(seconds=90)
    """Time limit between a response and the next request."""
    header_bytes: int = 1024 * 1024
    """Largest size of request line and headers together."""
    connections: int = 0
    """Largest number of connections of the listener. 0: the result of `most_connections()`."""
    each: int = 0
    """Largest number of connections of one address; an IPv6 /64 counts as one address. 0: unlimited."""
    proxies: Networks = ()
    """Networks whose PROXY headers are trusted. For other addresses, a PROXY header makes the TLS handshake fail."""


def most_connections() -> int:
    """Return the default number of connections of a listener: four fifths of the process's limit of file descriptors."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 4 // 5


class Connection(Protocol):
    """The interface of an open connection, for `Connections`."""

    def leave(self) -> None:
        """Close the connection as soon as no request is in progress."""

    def abort(self) -> None: ...


class Connections:
    """The connections of one listener, counted by address."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self.bounds = bounds
        self.arriving: set[asyncio.Transport] = set()
        """Connections whose TLS handshake has not ended."""
        self._open: set[Connection] = set()
        self._addresses: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._left = False
        self._most = bounds.connections or most_connections()
        self._refused = 0
        self._logged_at = -LOG_PERIOD

    def admit(self, address: str) -> Seat | None:
        """Count a connection from `address` and return its Seat. None: a limit is reached; the caller must close it.

        The method logs the number of refused connections at most every LOG_PERIOD seconds.
        """
        host, each = origin(address), self.bounds.each
        is_full = bool(each and host and self._addresses[host] >= each)
        if not is_full and self._addresses.total() < self._most:
            self._addresses[host] += 1
            return Seat(partial(self._left_by, host))
        self._refused += 1
        now = asyncio.get_running_loop().time()
        if now >= self._logged_at + LOG_PERIOD:
            why = {"address": host, "most": each} if is_full else {"most": self._most}
            log.warning("connections are closed: the limit is reached", closed=self._refused, **why)
            self._refused, self._logged_at = 0, now
        return None

    def _left_by(self, host: str) -> None:
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]

    def __len__(self) -> int:
        return len(self._open)

    def leave(self) -> None:
        """Close idle connections now, busy connections after the response, new connections after the TLS handshake."""
        self._left = True
        for connection in tuple(self._open):
            connection.leave()

    async def gone(self, within: timedelta) -> None:
        """Wait until no connection is open, at most for `within`."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                while self._open:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    def abort(self) -> None:
        for transport in tuple(self.arriving):
            transport.abort()
        for connection in tuple(self._open):
            connection.abort()

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)
        if self._left:
            connection.leave()

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._changed.set()


class Guard(asyncio.Protocol):
    """Passes all calls on to aiohttp's protocol, and enforces header deadline and header size.

    `shown`: the transport that aiohttp gets.
    """

    def __init__(self, inner: RequestHandler, connections: Connections, place: Seat, shown: asyncio.Transport) -> None:
        self._inner = inner
        self._connections = connections
        self._place = place
        self._shown = shown
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._refused = False

    @property
    def awaits_headers(self) -> bool:
        """Whether the connection waits for headers: no request is complete or being answered."""
        waiter = self._inner._waiter  # noqa: SLF001 - a test fails if aiohttp renames it
        return waiter is not None and not waiter.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream server makes no others
        self._transport = transport
        self._arm()
        self._inner.connection_made(self._shown)
        self._connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._place.leave()
        self._connections.closed(self)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        first = self._deadline is not None  # no response yet; the handler's task may not have begun to wait
        self._inner.data_received(data)
        if not self._in_headers(first=first):
            self._disarm()
            self._header_bytes = 0
            return
        self._header_bytes += len(data)
        if self._header_bytes > self._connections.bounds.header_bytes:
            self._refuse()
        elif self._deadline is None:
            self._arm()

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def leave(self) -> None:
        asked_nothing_yet = self._deadline is not None  # the handler's task may not have begun to wait
        if self._transport is not None and (self.awaits_headers or asked_nothing_yet):
            self._transport.close()
        else:
            self._inner.close()

    def abort(self) -> None:
        if self._transport is not None:
            with suppress(AttributeError):  # Python 3.11.2 fails for a TLS transport that is closed
                self._transport.abort()

    def _in_headers(self, *, first: bool) -> bool:
        if self._inner._messages:  # noqa: SLF001 - as above
            return False
        return self.awaits_headers or (first and self._inner._waiter is None and not self._inner._request_in_progress)  # noqa: SLF001

    def _refuse(self) -> None:
        """Send 431, then read for LINGER seconds, because closing a socket with unread bytes would discard the response."""
        log.info("refused by the HTTP server", status=431)
        self._refused = True
        self._disarm()
        if self._transport is not None:
            self._transport.write(TOO_LARGE)
            self._deadline = asyncio.get_running_loop().call_later(LINGER, self.abort)

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._connections.bounds.header.total_seconds(), self._expired)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        self._deadline = None
        if self.awaits_headers:
            log.info("a connection sent no complete request in time")
            self.abort()
