"""The way to a PostgreSQL server, which a test can cut: at once, or exactly when a commit is on it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import make_url

from tests.fakes.forwarder import Forwarder, Passes, Streams

SOCKET = ".s.PGSQL.5432"
COMMIT = b"COMMIT\0"
WRITES = b"UPDATE revision"  # seen on a connection by which something is written


class Way(Forwarder):
    """Passes everything on between a socket of its own, in `folder`, and the server's."""

    def __init__(self, folder: Path, server: Path) -> None:
        super().__init__()
        self._folder = folder
        self._path = Path(server, SOCKET)
        self.cut_next: str | None = None
        """"before": the next commit of a writer never reaches the server. "after": it does, and its answer never comes back."""
        self.cuts = 0
        self.sent: list[bytearray] = []  # what the client of each connection has sent

    def lead_to(self, folder: Path) -> None:
        """New connections lead to the server whose socket lies there; those that are open stay where they are."""
        self._path = Path(folder, SOCKET)

    async def take(self) -> None:
        self._server = await asyncio.start_unix_server(self._take, Path(self._folder, SOCKET))

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Streams | None:
        del reader, writer
        try:
            return await asyncio.open_unix_connection(str(self._path))
        except OSError:
            return None

    def passes(self) -> Passes:
        writes = is_muted = False
        sent = bytearray()
        self.sent.append(sent)

        def does(chunk: bytes, up: bool) -> bool:  # noqa: FBT001 - as declared
            nonlocal writes, is_muted
            if not up:
                return not is_muted
            sent.extend(chunk)
            writes = writes or WRITES in chunk
            if self.cut_next and writes and COMMIT in chunk:
                kind, self.cut_next, self.cuts = self.cut_next, None, self.cuts + 1
                is_muted = kind == "after"
                return is_muted
            return True

        return does


def message_types(sent: bytes | bytearray) -> str:
    """The types of the messages of a PostgreSQL client, such as E (Execute) and S (Sync), after its first message."""
    types, at = "", int.from_bytes(sent[:4])
    while at < len(sent):
        types += chr(sent[at])
        at += 1 + int.from_bytes(sent[at + 1 : at + 5])
    return types


@asynccontextmanager
async def postgres_path(url: str) -> AsyncIterator[tuple[Way, str]]:
    """The path, and the URL that leads over it. Only for a server on a Unix socket."""
    host = make_url(url).query["host"]
    assert isinstance(host, str)
    with TemporaryDirectory(prefix="muster-path-") as directory:
        async with Way(Path(directory), Path(host)).serving() as way:
            yield way, make_url(url).update_query_dict({"host": directory}).render_as_string(hide_password=False)
