"""The change log in a transaction: its revisions, its rows, and reads of the past."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from hub.api.meta.change import Change, Kind
from hub.ports import ChangeLog
from hub.store import schema
from hub.store.changelog.past import ChangeLogPast
from hub.store.changelog.retention import ChangeLogRetention
from hub.store.engine.encoding import RowForm, decode_values, encode_values, from_micros, to_micros
from hub.store.engine.notify import CHANGES, ring
from hub.store.engine.statements import Statement
from machinery.errors import ExpiredError
from machinery.meta.objects import ChangeType, Key, Page, Query, StoredObject
from machinery.meta.timestamps import format_time

_row = schema.changes.c
_counter = schema.revision.c
_VALUE = select(_counter.value)
_TAKE = update(schema.revision).values(value=_counter.value + bindparam("by")).returning(_counter.value)
_TAKEN = _TAKE.cte("taken")
_ADVANCE = Statement(lambda dialect: _TAKE if dialect == "sqlite" else select(_TAKEN.c.value, ring(CHANGES)))
"""On PostgreSQL this also notifies the other replicas at commit."""
_NEWEST = Statement(_VALUE)
_OLDEST = Statement(select(_counter.compacted))
_KEPT = Statement(select(_counter.value, _counter.compacted))
_LOG = Statement(insert(schema.changes))
LEAP = 1_000_000
"""More revisions than a database can lose at once."""


class SqlChanges(ChangeLogRetention, ChangeLog):
    def __init__(self, connection: Connection, now: datetime, form: RowForm, ringer: str) -> None:
        """`ringer`: this replica, which needs no notification of its own commits."""
        super().__init__(connection, now)
        self._form = form
        self._ringer = ringer
        self._newest: int | None = None
        self._past = ChangeLogPast(connection, lambda row: _change(row, form))

    def since(
        self,
        revision: int,
        *,
        kinds: Collection[Kind] | None = None,
        namespace: str | None = None,
        name: str | None = None,
        limit: int = 500,
    ) -> Sequence[Change]:
        self._check_kept(revision)
        statement = select(schema.changes).where(_row.revision > revision).order_by(_row.revision).limit(limit)
        if kinds is not None:
            statement = statement.where(_row.kind.in_(kinds))
        if namespace is not None:
            statement = statement.where(_row.namespace == namespace)
        if name is not None:
            statement = statement.where(_row.name == name)
        return [_change(row, self._form) for row in self._connection.execute(statement)]

    def of(self, kind: Kind, key: Key, *, since: datetime) -> Sequence[Change]:
        return self._past.since(kind, key, since, self.newest())

    def past(self, kind: Kind, key: Key, *, below: int | None = None, limit: int) -> Sequence[Change]:
        return self._past.of(kind, key, below=self.newest() + 1 if below is None else below, limit=limit)

    def one_at(self, kind: Kind, key: Key, at: int) -> StoredObject | None:
        self._check_remembered(at)
        return self._past.one(kind, key, at)

    def position(self, moment: datetime) -> int:
        position = self._past.position(moment, self.newest())
        self._check_remembered(position)
        return position

    def instant(self, revision: int) -> datetime | None:
        self._check_remembered(revision)
        return self._past.instant(revision)

    def began(self) -> datetime | None:
        return self._past.began(self.ledger().floor)

    def _check_remembered(self, revision: int) -> None:
        floor = self.ledger().floor
        if revision < floor:
            began = self._past.began(floor)
            since = f", {format_time(began)}" if began else ""
            raise ExpiredError(f"the past is remembered from revision {floor}{since} on: ask for a later one")
        self._check_known(revision, self.newest())

    def _check_kept(self, revision: int) -> None:
        newest, oldest = _KEPT.row(self._connection, {}) or (0, 0)
        if revision < oldest:
            raise ExpiredError(
                f"The provided resource version is too old: changes up to {oldest} are forgotten; list again, watch from there"
            )
        self._check_known(revision, newest)

    def _check_known(self, revision: int, newest: int) -> None:
        if revision > newest:
            raise ExpiredError(
                f"The provided resource version {revision} is not of this database, whose newest is {newest}: "
                "it was restored, or lost what was written last; list again, watch from there"
            )

    def newest(self) -> int:
        """Read once per transaction. Later reads are at least as new, so a watch from this revision misses nothing."""
        if self._newest is None:
            self._newest = _number(_NEWEST.row(self._connection, {}))
        return self._newest

    def oldest(self) -> int:
        return _number(_OLDEST.row(self._connection, {}))

    def advance(self, by: int) -> int:
        """Take the next `by` revisions and return the last; locks the counter until the commit."""
        return _number(_ADVANCE.row(self._connection, {"by": by, "ringer": self._ringer}))

    def skip_ahead(self, seen: int, shown: Change | None) -> bool:
        """Continue far above `seen`, where no watch resumes, if the database has lost what it showed. Returns whether it had.

        `shown`: the change at `seen`, if known. The check runs under the counter's lock, because the caller may have read a
        server that is behind, or another replica may have leapt already.
        """
        self.lock()
        newest, oldest = _KEPT.row(self._connection, {}) or (0, 0)
        if newest >= seen and not self._is_another(shown, oldest):
            return False
        far = max(newest, seen) + LEAP
        self.skip_to(far)
        return True

    def _is_another(self, shown: Change | None, oldest: int) -> bool:
        """Whether the log has another change at this revision. Compacted revisions are not compared."""
        if shown is None or shown.revision <= oldest:
            return False
        row = self._connection.execute(select(schema.changes).where(_row.revision == shown.revision)).one_or_none()
        return row is None or _change(row, self._form).encoded != shown.encoded

    def lock(self) -> None:
        """Lock the counter: no other transaction writes objects before the commit."""
        self._connection.execute(_VALUE.with_for_update())

    def log(self, changes: Sequence[Change]) -> None:
        _LOG.run_many(self._connection, [_values(change, self._form) for change in changes])

    def list_at(self, kind: Kind, query: Query, at: int) -> Page:
        """The objects as they were at revision `at`. Raises ExpiredError."""
        if query.past:
            self._check_remembered(at)
        else:
            self._check_kept(at)
        return self._past.listed(kind, query, at)


def _number(row: tuple[Any, ...] | None) -> int:
    """The counter from its row."""
    if row is None:
        raise RuntimeError("the counter's row is missing: the database was changed by hand")
    return int(row[0])


def _values(change: Change, form: RowForm) -> dict[str, Any]:
    return {
        "revision": change.revision,
        "at": to_micros(change.at),
        "actor": change.actor,
        "kind": change.kind,
        "namespace": change.key.namespace,
        "name": change.key.name,
        "type": change.type.value,
        "document": form.row(change.kind, change.key, change.encoded),
        "labels_before": encode_values(change.labels_before),
        "fields_before": encode_values(change.fields_before),
    }


def _change(row: Row[Any], form: RowForm) -> Change:
    kind, key = Kind(row.kind), Key(row.namespace, row.name)
    return Change(
        revision=row.revision,
        at=from_micros(row.at),
        actor=row.actor,
        kind=kind,
        key=key,
        type=ChangeType(row.type),
        encoded=form.document(kind, key, row.document),
        labels_before=decode_values(row.labels_before),
        fields_before=decode_values(row.fields_before),
    )
