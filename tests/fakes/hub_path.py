"""The way to one hub, as an agent has it: a TCP port that a test can cut, silence, slow down or fill.

Nothing that runs on either side knows of it: a hub advertises this port in place of its own.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK = 1 << 16
WAITING = 3
"""Connections that fill a queue of one."""


class HubPath:
    """Passes connections on to `target`, a port of the loopback address."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.delay = 0.0
        """Seconds for which every piece of data waits, in either direction."""
        self.taken: list[float] = []
        """When each connection was taken, by the event loop's clock."""
        self._passes = asyncio.Event()
        self._passes.set()
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._filled: list[socket.socket] = []

    def cut(self) -> None:
        """Breaks every connection there is (RST); new ones are taken."""
        for task in tuple(self._open):
            task.cancel()

    def silence(self) -> None:
        """From now on nothing arrives, in either direction, and nobody is told: every socket stays open."""
        self._passes.clear()

    def resume(self) -> None:
        """What was sent meanwhile arrives."""
        self._passes.set()

    async def refuse(self) -> None:
        """Nobody listens any more, and what was open breaks."""
        await self._stop_listening()
        self.cut()

    async def fill(self) -> None:
        """The queue of connections is full and nobody takes one: who dials waits. What was open breaks."""
        await self.refuse()
        full = _listening(self.port, backlog=0)
        self._filled = [full]
        for _ in range(WAITING):
            waiting = socket.socket()
            waiting.settimeout(0)
            with suppress(BlockingIOError):
                waiting.connect(("127.0.0.1", self.port))
            self._filled.append(waiting)
        await asyncio.sleep(0)

    async def take(self) -> None:
        """Listens, or listens again after `refuse` or `fill`."""
        for filler in self._filled:
            filler.close()
        self._filled = []
        if self._server is None:
            self._server = await asyncio.start_server(self._take, sock=_listening(self.port, backlog=4096))
            self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        await self._stop_listening()
        for filler in self._filled:
            filler.close()
        self.cut()
        if self._open:
            await asyncio.wait(self._open)

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            await asyncio.sleep(0)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.taken.append(asyncio.get_running_loop().time())
        try:
            await self._pass_on(reader, writer)
        except asyncio.CancelledError:
            pass  # cut: the server's own tasks end without a word
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passes.wait()
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(reader, back))
                tasks.create_task(self._copy(there, writer))
        finally:
            back.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Until the source ends; then the sink is told so. A connection that breaks breaks the other one, too."""
        try:
            while chunk := await source.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._passes.wait()
                sink.write(chunk)
                await sink.drain()
            await self._passes.wait()
        except OSError:
            await self._passes.wait()
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


@asynccontextmanager
async def path_to(target: int, port: int = 0) -> AsyncIterator[HubPath]:
    """A way to that port, until the block ends. `port`: its own, where it is to be away and come back; 0: any.

    One that the system gives to whoever dials may be somebody's when it comes back.
    """
    path = HubPath(target)
    path.port = port
    await path.take()
    try:
        yield path
    finally:
        await path.close()
