"""Changes of clusters' availability, in the order in which they were written."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnClause, and_, bindparam, delete, func, insert, literal_column, or_, select

from hub.api.managedclusters.availability import PARTED, Transition
from hub.ports.liveness import Transitions
from hub.store import schema
from hub.store.engine.encoding import from_micros, to_micros
from hub.store.engine.statements import Statement
from hub.store.tables.records import RowMapper, SqlTable
from machinery.identity import ClusterName
from machinery.meta.conditions import FALSE, TRUE, UNKNOWN

_table = schema.transitions
_column = _table.c
_newer = _table.alias()
_ROW = RowMapper(Transition, _table)
_ADD = Statement(
    insert(_table).values({name: bindparam(name) for name in ("cluster", "uid", "at", "before", "status", "reason", "actor")})
)
_TRUE: ColumnClause[str] = literal_column(f"'{TRUE}'")
_FALSE: ColumnClause[str] = literal_column(f"'{FALSE}'")
_UNKNOWN: ColumnClause[str] = literal_column(f"'{UNKNOWN}'")
_PARTED: list[ColumnClause[str]] = [literal_column(f"'{reason}'") for reason in sorted(PARTED)]
_IS_FALL = and_(
    _column.before == _TRUE,
    or_(_column.status == _FALSE, _column.status == _UNKNOWN),
    *(_column.reason != reason for reason in _PARTED),
)
_SINCE = _column.at > bindparam("since")
_OF_FALLS = select(_column.cluster, _column.at).where(_SINCE, _IS_FALL).order_by(_column.at)
_FALLS = Statement(_OF_FALLS)
FALLS_BY_CLUSTER = select(_column.cluster, func.count().label("falls")).where(_SINCE, _IS_FALL).group_by(_column.cluster)
"""Parameter: since, in microseconds."""
_FALLS_OF_ONE = Statement(_OF_FALLS.where(_column.cluster == bindparam("cluster")))
FEW = 8
"""Up to this number, clusters are queried one by one."""
_SILENT = Statement(
    select(func.count()).where(
        _SINCE,
        _column.status == _UNKNOWN,
        _column.before != _UNKNOWN,
        _column.reason == bindparam("reason"),
        ~select(_newer.c.id).where(_newer.c.cluster == _column.cluster, _newer.c.id > _column.id).exists(),
    )
)


class SqlTransitions(SqlTable, Transitions):
    """The table `transitions`."""

    def add(self, transition: Transition) -> None:
        _ADD.run(self._connection, _ROW.values(transition))

    def of(self, cluster: ClusterName, *, limit: int, uid: str | None = None) -> Sequence[Transition]:
        chosen = select(_table).where(_column.cluster == cluster).order_by(_column.id.desc()).limit(limit)
        if uid is not None:
            chosen = chosen.where(_column.uid == uid)
        return [_ROW.record(row) for row in self._connection.execute(chosen)]

    def falls(self, since: datetime, among: Collection[ClusterName] | None = None) -> Mapping[ClusterName, Sequence[datetime]]:
        values = {"since": to_micros(since)}
        if among is not None and len(among) <= FEW:
            rows = [row for one in among for row in _FALLS_OF_ONE.rows(self._connection, {**values, "cluster": one})]
        else:
            rows = list(_FALLS.rows(self._connection, values))
        found: dict[ClusterName, list[datetime]] = {}
        for cluster, at in rows:
            if among is None or cluster in among:
                found.setdefault(ClusterName(cluster), []).append(from_micros(at))
        return found

    def silent(self, since: datetime, reason: str) -> int:
        row = _SILENT.row(self._connection, {"since": to_micros(since), "reason": reason})
        return row[0] if row else 0

    def trim(self, before: datetime, limit: int) -> int:
        oldest = select(_column.id).where(_column.at < to_micros(before)).order_by(_column.at).limit(limit)
        return self._connection.execute(delete(_table).where(_column.id.in_(oldest))).rowcount
