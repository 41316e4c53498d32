"""The two bounds of the change log: watches resume from `compacted`; the past can be read from `floor`, which is not higher.

Retention removes old rows in order, so a row with a time in the future would stop it. Each row was written before the next row.
So the time of the next row replaces a time in the future.

Both bounds advance in portions. When `floor` (for kinds without a past: `compacted`) passes a row, the object's earlier row is
deleted. If the passed row records a deletion, it is deleted too. So below this bound each existing object has one row with its
last state. The cost of a transaction depends on its portion, not on the length of the log.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, delete, func, select, update

from hub.api.history import BYTES_OF_A_ROW, UNREMEMBERED, Ledger, Trimmed
from hub.ports import EVERYTHING
from hub.store import schema
from hub.store.engine.encoding import to_micros
from machinery.meta.objects import ChangeType


def written_by(times: Sequence[int], now: int, following: Callable[[], int | None]) -> Sequence[int]:
    """Return the latest possible write time of each row: its own time or, if that is in the future, the next row's time.

    `following`: returns the time of the first later row whose time is not in the future; None: there is none.
    """
    found: list[int] = []
    latest: int | None = None
    for time in reversed(times):
        if time <= now:
            latest = time
        elif latest is None:
            latest = following()
            latest = now if latest is None else latest
        found.append(latest)
    return found[::-1]


_row, _counter = schema.changes.c, schema.revision.c
_later = schema.changes.alias()
_LEDGER = select(_counter.compacted, _counter.floor, _counter.measured, _counter.bytes)
_WEIGHT = func.coalesce(
    func.sum(func.length(_row.document) + func.length(_row.labels_before) + func.length(_row.fields_before) + BYTES_OF_A_ROW), 0
)
_BEFORE = func.coalesce(func.sum(func.length(_row.labels_before) + func.length(_row.fields_before)), 0)
_NEXT = (
    select(_row.revision, _row.at).where(_row.revision > bindparam("bound")).order_by(_row.revision).limit(bindparam("limit"))
)
_PRESENT = (
    select(_row.at).where(_row.revision > bindparam("bound"), _row.at <= bindparam("now")).order_by(_row.revision).limit(1)
)


def _superseded(kinds: ColumnElement[bool]) -> Select[Any]:
    """Rows of these kinds superseded by a row in (bound, point]."""
    same = and_(_later.c.kind == _row.kind, _later.c.namespace == _row.namespace, _later.c.name == _row.name)
    passed = and_(_later.c.revision > bindparam("bound"), _later.c.revision <= bindparam("point"))
    return select(_row.revision).join(_later, and_(same, _later.c.revision > _row.revision)).where(passed, kinds)


def _deleted(kinds: ColumnElement[bool]) -> Select[Any]:
    """Deletions of these kinds with revisions in (bound, point]."""
    passed = and_(_row.revision > bindparam("bound"), _row.revision <= bindparam("point"))
    return select(_row.revision).where(passed, _row.type == ChangeType.DELETED.value, kinds)


_FORGOTTEN = _row.kind.in_(sorted(UNREMEMBERED))
UNREMEMBERED_ROWS = (_superseded(_FORGOTTEN), _deleted(_FORGOTTEN))
REMEMBERED_ROWS = (_superseded(~_FORGOTTEN), _deleted(~_FORGOTTEN))


class ChangeLogRetention:
    """Reads and advances the bounds of the change log in a transaction."""

    def __init__(self, connection: Connection, now: datetime) -> None:
        """`now`: rows with a later time come from a clock that was ahead; see `written_by`."""
        self._connection = connection
        self._now = to_micros(now)

    def ledger(self) -> Ledger:
        return Ledger(*self._connection.execute(_LEDGER).one())

    def compact(self, before: datetime, *, limit: int = EVERYTHING) -> Trimmed:
        """Advance `compacted` over at most `limit` rows older than `before`, and delete rows that only watches need."""
        ledger = self.ledger()
        point, more = self._passed(ledger.compacted, to_micros(before), limit)
        if point == ledger.compacted:
            return Trimmed()
        rows, freed = self._forget(ledger, ledger.compacted, point, UNREMEMBERED_ROWS)
        freed += self._strip(ledger, point)
        self._write(compacted=point, bytes=ledger.bytes - freed)
        return Trimmed(rows, more)

    def forget(self, before: datetime | None, *, limit: int = EVERYTHING) -> Trimmed:
        """Advance `floor` over at most `limit` rows, older than `before` (None: any age), never above `compacted`."""
        ledger = self.ledger()
        point, more = self._passed(ledger.floor, None if before is None else to_micros(before), limit)
        point, more = min(point, ledger.compacted), more and point < ledger.compacted
        if point == ledger.floor:
            return Trimmed()
        rows, freed = self._forget(ledger, ledger.floor, point, (*UNREMEMBERED_ROWS, *REMEMBERED_ROWS))
        self._write(floor=point, bytes=ledger.bytes - freed)
        return Trimmed(rows, more)

    def measure(self, *, limit: int = EVERYTHING) -> bool:
        """Add the size of the next rows, at most `limit`, to `Ledger.bytes`. Returns whether more rows may be unmeasured."""
        ledger = self.ledger()
        some = select(_row.revision).where(_row.revision > ledger.measured).order_by(_row.revision).limit(limit).subquery()
        last, count = self._connection.execute(select(func.max(some.c.revision), func.count()).select_from(some)).one()
        if last is None:
            return False
        weight = select(_WEIGHT).where(_row.revision > ledger.measured, _row.revision <= last)
        counted = ledger.bytes + int(self._connection.execute(weight).scalar_one())
        self._write(measured=last, bytes=counted)
        return int(count) == limit

    def skip_to(self, far: int) -> None:
        """Continue the log at revision `far`. The past below stays readable and is retained as before."""
        self._write(value=far, compacted=far)

    def _passed(self, bound: int, before: int | None, limit: int) -> tuple[int, bool]:
        """The new bound after at most `limit` rows older than `before`, and whether there may be more."""
        found = self._connection.execute(_NEXT, {"bound": bound, "limit": limit}).all()
        written = written_by([at for _, at in found], self._now, lambda: self._following(found[-1].revision))
        for (revision, _), at in zip(found, written, strict=True):
            if before is not None and at >= before:
                return bound, False
            bound = revision
        return bound, len(found) == limit

    def _following(self, revision: int) -> int | None:
        """The time of the next row that is not in the future."""
        at: int | None = self._connection.execute(_PRESENT, {"bound": revision, "now": self._now}).scalar_one_or_none()
        return at

    def _forget(self, ledger: Ledger, bound: int, point: int, rows: Sequence[Select[Any]]) -> tuple[int, int]:
        """Delete rows when the bound moves to the point. Returns their number and their measured bytes."""
        values = {"bound": bound, "point": point}
        gone = {int(row.revision) for statement in rows for row in self._connection.execute(statement, values)}
        return self._delete(gone, ledger.measured)

    def _strip(self, ledger: Ledger, point: int) -> int:
        """Clear the previous labels and fields, a third of a row, which only watches need. Returns the measured bytes."""
        passed = and_(_row.revision > ledger.compacted, _row.revision <= point)
        freed = self._connection.execute(select(_BEFORE).where(passed, _row.revision <= ledger.measured)).scalar_one()
        self._connection.execute(update(schema.changes).where(passed).values(labels_before="", fields_before=""))
        return int(freed)

    def _delete(self, revisions: Collection[int], measured: int) -> tuple[int, int]:
        if not revisions:
            return 0, 0
        chosen = _row.revision.in_(revisions)
        freed = self._connection.execute(select(_WEIGHT).where(chosen, _row.revision <= measured)).scalar_one()
        return int(self._connection.execute(delete(schema.changes).where(chosen)).rowcount), int(freed)

    def _write(self, **values: int) -> None:
        self._connection.execute(update(schema.revision).values(**values))
