"""Sinks of audit records (the database, a file or standard output), and the auditor that the hub's settings define.

`FileSink` opens its file for every batch, so that a log rotation may rename it. Each line is an event of `audit.k8s.io/v1`.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hub.api.auditrecords import STRANGERS, AuditEntry, Numbering, read_record
from hub.audit.auditor import Auditor
from hub.audit.policy import default_policy, read_policy
from hub.audit.trail import AuditSink, Trail
from hub.ports import Store
from hub.settings import HubSettings
from machinery.errors import InvalidError, UnavailableError
from machinery.runtime.clock import Clock
from machinery.runtime.tasks import GuardedTasks, TaskEndedError

STANDARD_OUTPUT = "-"
PRIVATE = 0o600
LONGEST_LINE = 4 * 1024 * 1024


class FileSink(AuditSink):
    """Appends records to a file. `path`: "-" means standard output."""

    def __init__(self, path: str) -> None:
        self.numbering = Numbering("file")
        self._path = None if path == STANDARD_OUTPUT else Path(path)
        self.name = "standard output" if self._path is None else str(self._path)

    async def open(self) -> None:
        """Check the file. Raises InvalidError if the hub cannot write it, or if its last line is not an audit record."""
        if self._path is None:
            return
        try:
            last = await asyncio.to_thread(_last_line, self._path)
        except OSError as error:
            raise InvalidError(
                f"the audit log {self._path} cannot be written ({error.strerror or error}): "
                "name a file in a directory that the hub's user may write, or - for standard output"
            ) from None
        if last and read_record(last) is None:
            raise InvalidError(
                f"{self._path} does not end with an audit record of a hub: choose another file for the audit log"
            )

    async def write(self, entries: Sequence[AuditEntry]) -> None:
        """Appends a batch. Raises UnavailableError; then no part of the batch remains in the file."""
        content = b"".join(entry.document + b"\n" for entry in entries)
        try:
            await asyncio.to_thread(_append, self._path, content)
        except OSError as error:
            raise UnavailableError(f"the audit log {self.name} cannot be written: {error.strerror or error}") from error


def _append(path: Path | None, content: bytes) -> None:
    if path is None:
        _write_all(1, content)
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
    try:
        before = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, content)
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _last_line(path: Path) -> bytes:
    """Returns the last complete line. Cuts off an incomplete line that a crash has left."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE)
    try:
        size = os.fstat(descriptor).st_size
        begin = max(0, size - LONGEST_LINE)
        tail = os.pread(descriptor, size - begin, begin)
        whole = tail.rfind(b"\n") + 1
        if whole < len(tail):
            if not whole and size:
                return tail
            os.ftruncate(descriptor, begin + whole)
        return tail[:whole].rstrip(b"\n").rpartition(b"\n")[2]
    finally:
        os.close(descriptor)


class StoreSink(AuditSink):
    """Stores records in the database. `suffix`: see `Numbering`."""

    def __init__(self, store: Store, replica: str, suffix: str = "") -> None:
        self.numbering = Numbering(replica, suffix)
        self._store = store
        self.name = "database, strangers" if suffix == STRANGERS else "database"

    async def open(self) -> None:
        """Does nothing: the database is open."""

    async def write(self, entries: Sequence[AuditEntry]) -> None:
        await self._store.run(lambda tx: tx.audit.add(entries))


@asynccontextmanager
async def auditing(
    settings: HubSettings, store: Store, replica: str, clock: Clock, *, on_end: Callable[[TaskEndedError], object]
) -> AsyncGenerator[Auditor]:
    """Runs the audit during the block. Then waits until offered records are stored, at most FLUSHED_WITHIN (`Auditor.finish`).

    Records go to the database, and to a file if the settings name one. Raises InvalidError for an invalid policy, and
    MusterError if records cannot be stored.
    """
    file = settings.audit_policy_file
    policy = default_policy(settings.api_group_suffix) if file is None else read_policy(file)
    database, strangers = StoreSink(store, replica), StoreSink(store, replica, STRANGERS)
    lines = [] if settings.audit_log_path is None else [Trail(FileSink(settings.audit_log_path), clock)]
    auditor = Auditor(
        policy,
        [Trail(database, clock), *lines],
        clock,
        strangers=[Trail(strangers, clock), *lines],
        numbering=database.numbering,
    )
    await auditor.open()
    async with GuardedTasks("audit", on_end=on_end) as tasks:
        tasks.start("delivery", auditor.run())
        try:
            yield auditor
        finally:
            await auditor.finish()
