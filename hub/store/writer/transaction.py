"""A SQL transaction with all its tables."""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from sqlalchemy import Connection, text

from hub.api.meta.change import Change
from hub.api.objects.history import Volume
from hub.ports import Transaction
from hub.store.changelog.changes import SqlChanges
from hub.store.engine.encoding import RowForm
from hub.store.engine.statements import WRITTEN
from hub.store.objects.objects import SqlObjects
from hub.store.tables.audit import SqlAuditLog
from hub.store.tables.authorities import SqlAuthorities, SqlTrusts
from hub.store.tables.certificates import SqlCertificates
from hub.store.tables.credentials import SqlBindings, SqlCredentials
from hub.store.tables.heartbeats import SqlHeartbeats, SqlMarks
from hub.store.tables.leaders import SqlFacts, SqlLeaders
from hub.store.tables.replicas import SqlAgentSessions, SqlReplicas
from hub.store.tables.transitions import SqlTransitions

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

    def __init__(self, connection: Connection, now: datetime, *, form: RowForm, ringer: str, writable: bool) -> None:
        self._now = now
        self._changes = SqlChanges(connection, now, form, ringer)
        self._objects = SqlObjects(connection, self._changes, now, form=form, writable=writable)
        self._certificates = SqlCertificates(connection)
        self._authorities = SqlAuthorities(connection)
        self._credentials = SqlCredentials(connection, writable=writable)
        self._bindings = SqlBindings(connection)
        self._heartbeats = SqlHeartbeats(connection, now, writable=writable)
        self._transitions = SqlTransitions(connection)
        self._marks = SqlMarks(connection)
        self._replicas = SqlReplicas(connection, writable=writable)
        self._agent_sessions = SqlAgentSessions(connection, ringer)
        self._trusts = SqlTrusts(connection)
        self._facts = SqlFacts(connection)
        self._audit = SqlAuditLog(connection)
        self._leaders = SqlLeaders(connection, lambda: now)
        self._connection = connection

    def count_anew(self) -> None:
        """Reset `has_written`."""
        self._connection.info.pop(WRITTEN, None)

    @property
    def has_written(self) -> bool:
        """Whether a statement has changed rows since `count_anew`, with or without a row in the change log."""
        return WRITTEN in self._connection.info

    @property
    def now(self) -> datetime:
        return self._now

    @property
    def objects(self) -> SqlObjects:
        return self._objects

    @property
    def changes(self) -> SqlChanges:
        return self._changes

    @property
    def certificates(self) -> SqlCertificates:
        return self._certificates

    @property
    def authorities(self) -> SqlAuthorities:
        return self._authorities

    @property
    def credentials(self) -> SqlCredentials:
        return self._credentials

    @property
    def bindings(self) -> SqlBindings:
        return self._bindings

    @property
    def heartbeats(self) -> SqlHeartbeats:
        return self._heartbeats

    @property
    def transitions(self) -> SqlTransitions:
        return self._transitions

    @property
    def marks(self) -> SqlMarks:
        return self._marks

    @property
    def replicas(self) -> SqlReplicas:
        return self._replicas

    @property
    def agent_sessions(self) -> SqlAgentSessions:
        return self._agent_sessions

    @property
    def trusts(self) -> SqlTrusts:
        return self._trusts

    @property
    def facts(self) -> SqlFacts:
        return self._facts

    @property
    def audit(self) -> SqlAuditLog:
        return self._audit

    @property
    def leaders(self) -> SqlLeaders:
        return self._leaders

    def volume(self) -> Volume:
        return volume(self._connection)

    def flush(self) -> Sequence[Change]:
        """Assign revisions and write the rows of all buffered writes. This is the last step before the commit."""
        return self._objects.flush()
