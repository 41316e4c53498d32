"""The audit log. A record is added in the transaction that it describes or in a batch. Records are queried by time."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import delete, func, select, tuple_

from hub.api.auditrecords import STRANGERS, AuditEntry, AuditFields, AuditQuery, AuditSize
from hub.api.history import BYTES_OF_A_ROW
from hub.ports import AuditLog
from hub.store import schema
from hub.store.engine.encoding import from_micros, to_micros
from hub.store.engine.engine import insert_into
from hub.store.engine.statements import Statement
from hub.store.tables.records import RowMapper, SqlTable

_column = schema.audit.c
_ADD = Statement(lambda dialect: insert_into(schema.audit, dialect).on_conflict_do_nothing())
_ENTRY, _FIELDS = RowMapper(AuditEntry, schema.audit, fields=None), RowMapper(AuditFields, schema.audit)
_PLACE = (_column.at, _column.replica, _column.sequence)
_OF_STRANGERS = _column.replica.endswith(STRANGERS)
_SIZE = func.length(_column.document) + BYTES_OF_A_ROW


class SqlAuditLog(SqlTable, AuditLog):
    def add(self, entries: Sequence[AuditEntry]) -> None:
        _ADD.run_many(self._connection, [_ENTRY.values(entry, **_FIELDS.values(entry.fields)) for entry in entries])

    def find(self, query: AuditQuery) -> Sequence[AuditEntry]:
        order = [column.desc() for column in _PLACE] if query.newest_first else _PLACE
        chosen = select(schema.audit).order_by(*order)
        for name, value in query.equal:
            chosen = chosen.where(_column[name] == value)
        for name, value in query.unequal:
            chosen = chosen.where(_column[name] != value)
        if query.since is not None:
            chosen = chosen.where(_column.at >= to_micros(query.since))
        if query.until is not None:
            chosen = chosen.where(_column.at <= to_micros(query.until))
        if query.after is not None:
            place = (to_micros(query.after.at), query.after.replica, query.after.sequence)
            here, last = tuple_(*_PLACE), tuple_(*place)
            chosen = chosen.where(here < last if query.newest_first else here > last)
        if query.limit is not None:
            chosen = chosen.limit(query.limit + 1)
        return [_ENTRY.record(row, fields=_FIELDS.record(row)) for row in self._connection.execute(chosen)]

    def sizes(self, *, strangers: bool) -> Mapping[str, AuditSize]:
        counted = select(_column.user, func.count(), func.sum(_SIZE), func.min(_column.at)).group_by(_column.user)
        rows = self._connection.execute(counted.where(_OF_STRANGERS if strangers else ~_OF_STRANGERS))
        return {user: AuditSize(int(records), int(size), from_micros(at)) for user, records, size, at in rows}

    def remove(
        self,
        limit: int,
        *,
        before: datetime | None = None,
        strangers: bool | None = None,
        user: str | None = None,
        since: datetime | None = None,
    ) -> AuditSize:
        conditions = [] if before is None else [_column.at < to_micros(before)]
        conditions += [] if since is None else [_column.at >= to_micros(since)]
        conditions += [] if user is None else [_column.user == user]
        if strangers is not None:
            conditions.append(_OF_STRANGERS if strangers else ~_OF_STRANGERS)
        oldest = select(*_PLACE, _SIZE.label("size")).where(*conditions).order_by(*_PLACE).limit(limit)
        rows = self._connection.execute(oldest).all()
        if rows:
            last = tuple_(*_PLACE) <= tuple_(*rows[-1][:3])
            self._connection.execute(delete(schema.audit).where(*conditions, last))
        return AuditSize(len(rows), sum(row.size for row in rows), from_micros(rows[-1].at) if rows else None)
