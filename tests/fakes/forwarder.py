"""TCP ports that pass connections on: one that a test can cut, or silence, and an HTTP CONNECT proxy."""

import asyncio
import socket
import ssl
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Self

CHUNK = 1 << 16
SOON = 3  # turns of the event loop until a connection that is being accepted has its task

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Passes = Callable[[bytes, bool], bool]
"""Whether a piece of data of one connection is passed on, and not its end; the second argument: it comes from the client."""


class Forwarder:
    """Connections go in turn to `targets`, ports of the loopback address, which may be changed at any time.

    A target that refuses is passed over. `tls`: the port speaks TLS.
    """

    def __init__(self, *targets: int, tls: ssl.SSLContext | None = None) -> None:
        self.targets = list(targets)
        self.port = 0
        self.taken: Counter[int] = Counter()  # connections passed on so far, by target
        self.up = self.down = 0  # bytes passed on, to the targets and from them
        self._tls = tls
        self._next = 0
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def cut(self) -> None:
        """Breaks every connection there is (RST); new ones are taken."""
        for task in tuple(self._open):
            task.cancel()

    def silence(self) -> None:
        """From now on nothing arrives, in either direction, and without an error: every socket stays open."""
        self._is_open.clear()

    def resume(self) -> None:
        """What was sent meanwhile arrives."""
        self._is_open.set()

    def reroute(self) -> None:
        """New connections pass; what was sent over those that are open never arrives."""
        self._is_open = asyncio.Event()
        self._is_open.set()

    async def refuse(self) -> None:
        """Nobody listens any more, and what was open breaks."""
        if self._server is not None:
            self._server.close()
            self._server = None
            await asyncio.sleep(0)
        self.cut()

    async def take(self) -> None:
        """Listens, or listens again after `refuse`."""
        if self._server is None:
            listener = _listening(self.port, backlog=4096)
            self.port = listener.getsockname()[1]
            self._server = await asyncio.start_server(self._take, sock=listener, ssl=self._tls)

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[Self]:
        """`port`: its own, where it is to be away and come back; one that the system gives may be somebody's by then."""
        self.port = port
        await self.take()
        try:
            yield self
        finally:
            await self.close()

    async def close(self) -> None:
        await self.refuse()
        for _ in range(SOON):
            await asyncio.sleep(0)
            self.cut()
        if self._open:
            await asyncio.wait(self._open)
        await asyncio.sleep(0)

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Streams | None:  # noqa: ARG002
        """The other side of a new connection; None: it is not passed on."""
        for _ in range(len(self.targets)):
            target = self.targets[self._next % len(self.targets)]
            self._next += 1
            with suppress(OSError):
                streams = await asyncio.open_connection("127.0.0.1", target)
                self.taken[target] += 1
                return streams
        return None

    def passes(self) -> Passes:
        """Made for each connection."""
        return lambda _chunk, _up: True

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._open.discard(task)
            writer.transport.abort()

        task = asyncio.create_task(self._pass_on(reader, writer), name="a connection that is passed on")
        self._open.add(task)
        task.add_done_callback(ended)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_open, passes = self._is_open, self.passes()
        await is_open.wait()
        if (streams := await self.connect(reader, writer)) is None:
            return
        there, back = streams
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(reader, back, is_open, passes, up=True))
                tasks.create_task(self._copy(there, writer, is_open, passes, up=False))
        finally:
            back.transport.abort()

    async def _copy(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_open: asyncio.Event, passes: Passes, *, up: bool
    ) -> None:
        """Until the source ends; then the sink gets the end. A connection that breaks breaks the other one, too."""
        try:
            while chunk := await source.read(CHUNK):
                await is_open.wait()
                if not passes(chunk, up):
                    break
                self.up += len(chunk) * up
                self.down += len(chunk) * (not up)
                sink.write(chunk)
                await sink.drain()
            await is_open.wait()
        except OSError:
            await is_open.wait()
            sink.transport.abort()
        with suppress(OSError):
            if sink.can_write_eof():
                sink.write_eof()


def _listening(port: int, backlog: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(backlog)
    listener.settimeout(0)
    return listener


ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
PASSWORD_WANTED = b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"


class ConnectProxy(Forwarder):
    """`login` is `user:password`; empty: anybody may pass. With `tls` it is an https:// proxy."""

    def __init__(self, login: str = "", tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls=tls)
        self.login = login
        self.tunnels: list[str] = []  # `host:port` of every tunnel that was opened
        self.refused = 0

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Streams | None:
        try:
            method, target, headers = _parsed(await reader.readuntil(b"\r\n\r\n"))
        except (OSError, asyncio.IncompleteReadError):
            return None
        wanted = f"Basic {b64encode(self.login.encode()).decode()}"
        if method != "CONNECT" or (self.login and headers.get("proxy-authorization") != wanted):
            self.refused += 1
            writer.write(PASSWORD_WANTED)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            return None
        host, _, port = target.rpartition(":")
        try:
            streams = await asyncio.open_connection(host, int(port))
        except OSError:
            return None
        self.tunnels.append(target)
        writer.write(ESTABLISHED)
        return streams


def _parsed(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    named = (line.partition(":") for line in lines if line)
    return method, target, {name.strip().lower(): value.strip() for name, _, value in named}
