"""A TCP load balancer on the loopback address, as one stands before the replicas of a hub: it spreads connections unread."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

CHUNK = 1 << 16


class Balancer:
    """New connections go to the backends in turn; one that refuses is passed over. `ports` may be changed at any time."""

    def __init__(self, *ports: int) -> None:
        self.ports = list(ports)
        self.port = 0
        self.taken: dict[int, int] = {}
        """Connections taken so far, by backend."""
        self.up = self.down = 0
        """Bytes passed on, to the backends and from them."""
        self._next = 0
        self._open: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Breaks every connection there is; new ones are taken."""
        for task in tuple(self._open):
            task.cancel()

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator["Balancer"]:
        server = await asyncio.start_server(self._take, "127.0.0.1", port, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            if self._open:
                await asyncio.wait(self._open)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._pass_on(reader, writer)
        except asyncio.CancelledError:
            pass  # cut: the server's own tasks end without a word
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(len(self.ports)):
            port = self.ports[self._next % len(self.ports)]
            self._next += 1
            try:
                there, back = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            self.taken[port] = self.taken.get(port, 0) + 1
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_copy(reader, back, self._passed_up))
                    tasks.create_task(_copy(there, writer, self._passed_down))
            finally:
                back.transport.abort()
            return

    def _passed_up(self, size: int) -> None:
        self.up += size

    def _passed_down(self, size: int) -> None:
        self.down += size


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, passed: Callable[[int], None]) -> None:
    """Until the source ends; then the sink is told so, and may go on in the other direction."""
    with suppress(OSError):
        while chunk := await source.read(CHUNK):
            passed(len(chunk))
            sink.write(chunk)
            await sink.drain()
    with suppress(OSError):
        if sink.can_write_eof():
            sink.write_eof()
