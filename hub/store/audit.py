"""The audit log: chains of records. Written by batches, read by place in a chain or by time."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, select, tuple_

from hub.domain.audit import Fields
from hub.domain.chain import AuditQuery, Head, Link
from hub.domain.history import BYTES_OF_A_ROW
from hub.ports import AuditLog
from hub.store import schema
from hub.store.ages import written_by
from hub.store.engine import INSERTS
from hub.store.instants import from_micros, to_micros
from hub.store.statement import Statement

_column = schema.audit.c
_anchor = schema.audit_anchors.c
_ADD = Statement(insert(schema.audit))
_OF_REPLICA = _column.replica == bindparam("replica")
_LAST = select(func.max(_column.sequence)).where(_OF_REPLICA).scalar_subquery()
_HEAD = Statement(select(_column.sequence, _column.hash).where(_OF_REPLICA, _column.sequence == _LAST))
_ANCHOR = Statement(select(_anchor.sequence, _anchor.hash).where(_anchor.replica == bindparam("replica")))
_PLACE = (_column.at, _column.replica, _column.sequence)


class SqlAuditLog(AuditLog):
    """The table `audit` and its anchors."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, links: Sequence[Link]) -> None:
        _ADD.run_many(self._connection, [_values(link) for link in links])

    def head(self, replica: str) -> Head:
        values = {"replica": replica}
        row = _HEAD.row(self._connection, values) or _ANCHOR.row(self._connection, values)
        return Head() if row is None else Head(row[0], row[1])

    def anchors(self) -> Mapping[str, Head]:
        return {row.replica: Head(row.sequence, row.hash) for row in self._connection.execute(select(schema.audit_anchors))}

    def replicas(self) -> Sequence[str]:
        """Steps from name to name: each is one look into the key, however many links there are."""
        found, last = set(self.anchors()), ""
        while True:
            step = select(func.min(_column.replica)).where(_column.replica > last)
            name = self._connection.execute(step).scalar_one()
            if name is None:
                return sorted(found)
            found.add(name)
            last = name

    def links(self, replica: str, *, after: int, limit: int) -> Sequence[Link]:
        chosen = select(schema.audit).where(_column.replica == replica, _column.sequence > after)
        return [_link(row) for row in self._connection.execute(chosen.order_by(_column.sequence).limit(limit))]

    def find(self, query: AuditQuery) -> Sequence[Link]:
        chosen = select(schema.audit).order_by(*_PLACE)
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
            chosen = chosen.where(tuple_(*_PLACE) > tuple_(*place))
        if query.limit is not None:
            chosen = chosen.limit(query.limit + 1)
        return [_link(row) for row in self._connection.execute(chosen)]

    def trim(self, before: datetime, now: datetime, limit: int) -> int:
        return sum(self._trim(replica, to_micros(before), to_micros(now), limit) for replica in self.replicas())

    def _trim(self, replica: str, before: int, now: int, limit: int) -> int:
        """Up to the first link that is young enough: a clock that was set back leaves no hole."""
        of_chain = _column.replica == replica
        oldest = select(_column.sequence, _column.hash, _column.at).where(of_chain).order_by(_column.sequence).limit(limit)
        rows = self._connection.execute(oldest).all()
        written = written_by([row.at for row in rows], now, lambda: self._following(replica, rows[-1].sequence, now))
        old = list(takewhile(lambda each: each[1] < before, zip(rows, written, strict=True)))
        return self._remove(of_chain, old[-1][0], replica) if old else 0

    def bytes(self) -> int:
        rows = func.count() * BYTES_OF_A_ROW + func.coalesce(func.sum(func.length(_column.document)), 0)
        return int(self._connection.execute(select(rows)).scalar_one())

    def shorten(self, replica: str, limit: int) -> int:
        of_chain = _column.replica == replica
        sizes = select(_column.sequence, _column.hash, func.length(_column.document).label("size")).where(of_chain)
        rows = self._connection.execute(sizes.order_by(_column.sequence).limit(limit)).all()
        if rows:
            self._remove(of_chain, rows[-1], replica)
        return sum(row.size + BYTES_OF_A_ROW for row in rows)

    def _remove(self, of_chain: ColumnElement[bool], last: Any, replica: str) -> int:
        """All links up to `last`, which becomes the anchor; how many went."""
        new = INSERTS[self._connection.dialect.name](schema.audit_anchors)
        kept = {"sequence": last.sequence, "hash": last.hash}
        anchored = new.values(replica=replica, **kept).on_conflict_do_update(index_elements=[_anchor.replica], set_=kept)
        self._connection.execute(anchored)
        return self._connection.execute(delete(schema.audit).where(of_chain, _column.sequence <= last.sequence)).rowcount

    def _following(self, replica: str, sequence: int, now: int) -> int | None:
        """The time of the next link that is not of the future."""
        behind = (_column.replica == replica, _column.sequence > sequence, _column.at <= now)
        at: int | None = self._connection.execute(
            select(_column.at).where(*behind).order_by(_column.sequence).limit(1)
        ).scalar_one_or_none()
        return at


def _values(link: Link) -> dict[str, Any]:
    fields = link.fields
    return {
        "replica": link.replica,
        "sequence": link.sequence,
        "previous": link.previous,
        "hash": link.hash,
        "at": to_micros(link.at),
        "user": fields.user,
        "verb": fields.verb,
        "resource": fields.resource,
        "namespace": fields.namespace,
        "name": fields.name,
        "document": link.document,
    }


def _link(row: Any) -> Link:
    return Link(
        replica=row.replica,
        sequence=row.sequence,
        previous=row.previous,
        hash=row.hash,
        at=from_micros(row.at),
        fields=Fields(row.user, row.verb, row.resource, row.namespace, row.name),
        document=row.document,
    )
