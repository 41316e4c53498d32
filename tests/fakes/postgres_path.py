"""The way to a PostgreSQL server, which a test can cut: at once, or exactly when a commit is on it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import make_url

SOCKET = ".s.PGSQL.5432"
COMMIT = b"COMMIT\0"
WRITES = b"UPDATE revision"
"""Seen on a connection by which something is written."""


class Way:
    """Passes everything on between a socket of its own and the server's."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.cut_next: str | None = None
        """"before": the next commit of a writer never reaches the server. "after": it does, and its answer never comes back."""
        self.cuts = 0
        self._passes = asyncio.Event()
        self._passes.set()

    def lead_to(self, folder: Path) -> None:
        """New connections lead to the server whose socket lies there; those that are open stay where they are."""
        self._server = Path(folder, SOCKET)

    def swallow(self) -> None:
        """From now on nothing arrives, in either direction, and nobody is told: a cable that was pulled."""
        self._passes.clear()

    def pass_on(self) -> None:
        """The cable is in again: what was sent meanwhile arrives."""
        self._passes.set()

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="a connection to the database")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    def reroute(self) -> None:
        """New connections pass; what was sent over those that are open never arrives."""
        self._passes = asyncio.Event()
        self._passes.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_unix_connection(str(self._server))
        except OSError:
            writer.close()
            return
        ends = {writer, back}
        self._open |= ends
        muted, passes = asyncio.Event(), self._passes
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forward(reader, back, muted, passes))
                tasks.create_task(self._backward(there, writer, muted, passes))
        finally:
            self._open -= ends
            for end in ends:
                end.close()

    async def _forward(
        self, reader: asyncio.StreamReader, back: asyncio.StreamWriter, muted: asyncio.Event, passes: asyncio.Event
    ) -> None:
        writes = False
        with suppress(OSError):
            while chunk := await reader.read(65536):
                await passes.wait()
                writes = writes or WRITES in chunk
                if self.cut_next and writes and COMMIT in chunk:
                    kind, self.cut_next, self.cuts = self.cut_next, None, self.cuts + 1
                    if kind == "before":
                        break
                    muted.set()
                back.write(chunk)
                await back.drain()
        back.close()

    async def _backward(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, muted: asyncio.Event, passes: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while chunk := await there.read(65536):
                await passes.wait()
                if muted.is_set():
                    break
                writer.write(chunk)
                await writer.drain()
        writer.close()

    async def close(self) -> None:
        self.cut_all()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def cut_all(self) -> None:
        """Every connection that is open breaks."""
        for end in tuple(self._open):
            end.transport.abort()


@asynccontextmanager
async def postgres_path(url: str) -> AsyncIterator[tuple[Way, str]]:
    """The path, and the URL that leads over it. Only for a server on a Unix socket."""
    host = make_url(url).query["host"]
    assert isinstance(host, str)
    with TemporaryDirectory(prefix="muster-path-") as directory:
        path = Way(Path(host, SOCKET))
        server = await asyncio.start_unix_server(path.serve, Path(directory, SOCKET))
        try:
            yield path, make_url(url).update_query_dict({"host": directory}).render_as_string(hide_password=False)
        finally:
            server.close()
            await path.close()
