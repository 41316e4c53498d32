"""A SQL transaction with all its tables."""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from sqlalchemy import Connection, text

from hub.api.history import Volume
from hub.api.meta.change import Change
from hub.ports import Transaction
from hub.store.changelog.changes import SqlChanges
from hub.store.engine.encoding import RowForm
from hub.store.engine.statements import WRITTEN
from hub.store.objects.objects import SqlObjects
from hub.store.tables.audit import SqlAuditLog
from hub.store.tables.authorities import SqlAuthorities, SqlTrusts
from hub.store.tables.certificates import SqlCertificates
from hub.store.tables.credentials import SqlBindings, SqlCredentials
from hub.store.tables.leaders import SqlFacts, SqlLeaders
from hub.store.tables.liveness import SqlHeartbeats, SqlMarks, SqlTransitions
from hub.store.tables.replicas import SqlAgentSessions, SqlReplicas

_PAGES = text(
    "SELECT page_count * page_size, freelist_count * page_size, file "
    "FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size(), pragma_database_list() WHERE name = 'main'"
)
_SIZE = text("SELECT pg_database_size(current_database())")


def volume(connection: Connection) -> Volume:
    """Measure the database. The free space is known for SQLite only."""
    if connection.dialect.name == "postgresql":
        return Volume(int(connection.execute(_SIZE).scalar_one()))
    size, reusable, file = connection.execute(_PAGES).one()
    return Volume(int(size), int(reusable), _free(str(file)))


def _free(file: str) -> int | None:
    """Bytes available to an unprivileged process; None if unknown."""
    with suppress(OSError):
        disk = os.statvfs(file)
        return disk.f_bavail * disk.f_frsize
    return None


class SqlTransaction(Transaction):
    """The tables of a transaction, all on the same connection. The caller begins and ends it."""

    def __init__(self, connection: Connection, now: datetime, *, form: RowForm, sender: str, writable: bool) -> None:
        self._connection = connection
        self.now = now
        self.changes: SqlChanges = SqlChanges(connection, now, form, sender)
        self.objects: SqlObjects = SqlObjects(connection, self.changes, now, form=form, writable=writable)
        self.certificates = SqlCertificates(connection)
        self.authorities = SqlAuthorities(connection)
        self.credentials = SqlCredentials(connection, writable=writable)
        self.bindings = SqlBindings(connection)
        self.heartbeats = SqlHeartbeats(connection, now, writable=writable)
        self.transitions = SqlTransitions(connection)
        self.marks = SqlMarks(connection)
        self.replicas = SqlReplicas(connection, writable=writable)
        self.agent_sessions = SqlAgentSessions(connection, sender)
        self.trusts = SqlTrusts(connection)
        self.facts = SqlFacts(connection)
        self.audit = SqlAuditLog(connection)
        self.leaders = SqlLeaders(connection, lambda: now)

    def reset_writes(self) -> None:
        self._connection.info.pop(WRITTEN, None)

    @property
    def has_written(self) -> bool:
        """Whether a statement has changed rows since `reset_writes`, with or without a row in the change log."""
        return WRITTEN in self._connection.info

    def volume(self) -> Volume:
        return volume(self._connection)

    def flush(self) -> Sequence[Change]:
        """Assign revisions and write the rows of all buffered writes. This is the last step before the commit."""
        return self.objects.flush()
