"""The replicas' marks: the last time each could store beats, and since when without a gap."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update

from hub.api.liveness import Checkpoint
from hub.ports import Marks
from hub.store import schema
from hub.store.engine.engine import INSERTS
from hub.store.engine.instants import from_micros, to_micros
from hub.store.engine.statements import Statement

_table = schema.hearing
_column = _table.c
_ALL = Statement(select(_table).order_by(_column.replica))
_LOCKED = Statement(select(_table).order_by(_column.replica).with_for_update())


def _upsert(dialect: str) -> Any:
    new = INSERTS[dialect](_table).values({name: bindparam(name) for name in ("replica", "since", "at")})
    return new.on_conflict_do_update(
        index_elements=[_column.replica], set_={"since": new.excluded.since, "at": new.excluded.at}
    )


_MARK = Statement.each(_upsert)


class SqlMarks(Marks):
    """The table `hearing`, one row per replica."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> Sequence[Checkpoint]:
        return [Checkpoint(row[0], from_micros(row[1]), from_micros(row[2])) for row in _ALL.rows(self._connection, {})]

    def put(self, mark: Checkpoint) -> None:
        values = {"replica": mark.replica, "since": to_micros(mark.since), "at": to_micros(mark.at)}
        _MARK.run(self._connection, values)

    def begin_anew(self, now: datetime) -> None:
        moment = to_micros(now)
        _LOCKED.rows(self._connection, {})  # locked in name order, so that two replicas cannot deadlock
        self._connection.execute(delete(_table))
        beat = schema.heartbeats.c.at
        self._connection.execute(update(schema.heartbeats).where(beat > moment).values(at=moment))

    def forget(self, before: datetime) -> None:
        self._connection.execute(delete(_table).where(_column.at < to_micros(before)))
