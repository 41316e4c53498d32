"""Who leads: a record per lock, and beside it the lock's newest term, which the leader's own transactions hold."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, text, update

from hub.ports import Leaders
from hub.store import schema
from hub.store.engine import INSERTS
from hub.store.instants import from_micros, to_micros
from hub.store.statement import Statement
from machinery.election.lock import Candidate, Record
from machinery.errors import ConflictError, NotLeaderError

_column, _term = schema.leaders.c, schema.terms.c
_THIS = _column.lock == bindparam("lock_")
_HELD = (_THIS, _column.holder != "", _column.incarnation == bindparam("incarnation_"), _column.term == bindparam("term_"))
_OF = Statement(select(schema.leaders).where(_THIS))
_FOR_UPDATE = Statement(select(_column.version).where(_THIS).with_for_update())
_REQUIRE = Statement(select(_term.term).where(_term.lock == bindparam("lock_")).with_for_update(read=True))
_MILLISECOND = timedelta(milliseconds=1)
OVER = "another replica leads now: the write of an earlier term was not committed"
LOST = "the lock is held by another, or in another term"


class SqlLeaders(Leaders):
    """The tables `leaders` and `terms`. `now` is asked only where an instant is written."""

    def __init__(self, connection: Connection, now: Callable[[], datetime]) -> None:
        self._connection = connection
        self._now = now

    def of(self, lock: str) -> Record | None:
        row = _OF.row(self._connection, {"lock_": lock})
        return None if row is None else _record(row)

    def all(self) -> Mapping[str, Record]:
        rows = self._connection.execute(select(schema.leaders).order_by(_column.lock)).all()
        return {row.lock: _record(tuple(row)) for row in rows}

    def take(self, lock: str, seen: Record | None, candidate: Candidate, lease: timedelta) -> Record:
        found = _FOR_UPDATE.row(self._connection, {"lock_": lock})
        if (None if found is None else str(found[0])) != (None if seen is None else seen.version):
            raise ConflictError("another has taken the lock")
        now = self._now()
        taken = Record(
            holder=candidate.identity,
            incarnation=candidate.incarnation,
            term=self._next_term(lock),
            transitions=_transitions(seen, candidate),
            lease=lease,
            acquired_at=now,
            renewed_at=now,
            version=str(1 if seen is None else int(seen.version) + 1),
        )
        values = _values(taken)
        if seen is None:
            self._connection.execute(insert(schema.leaders).values(lock=lock, **values))
        else:
            self._connection.execute(update(schema.leaders).where(_column.lock == lock).values(values))
        return taken

    def _next_term(self, lock: str) -> int:
        one_more = INSERTS[self._connection.dialect.name](schema.terms).values(lock=lock, term=1)
        one_more = one_more.on_conflict_do_update(index_elements=[_term.lock], set_={"term": _term.term + 1})
        term: int = self._connection.execute(one_more.returning(_term.term)).scalar_one()
        return term

    def renew(self, lock: str, held: Record) -> Record:
        if self._connection.dialect.name == "postgresql":
            # the newest renewal may be lost with the database's machine: that harms nobody
            self._connection.execute(text("SET LOCAL synchronous_commit TO off"))
        now = self._now()
        changed = self._change(lock, held, renewed_at=to_micros(now))
        if changed is None:
            raise ConflictError(LOST)
        return replace(held, renewed_at=now, version=changed)

    def release(self, lock: str, held: Record) -> bool:
        return self._change(lock, held, holder="") is not None

    def _change(self, lock: str, held: Record, **values: Any) -> str | None:
        change = update(schema.leaders).where(*_HELD).values(version=_column.version + 1, **values).returning(_column.version)
        place = {"lock_": lock, "incarnation_": held.incarnation, "term_": held.term}
        version = self._connection.execute(change, place).scalar_one_or_none()
        return None if version is None else str(version)

    def require(self, lock: str, term: int) -> None:
        row = _REQUIRE.row(self._connection, {"lock_": lock})
        if row is None or row[0] != term:
            raise NotLeaderError(OVER)


def _transitions(seen: Record | None, candidate: Candidate) -> int:
    if seen is None:
        return 0
    return seen.transitions + (seen.holder != candidate.identity)


def _values(record: Record) -> dict[str, Any]:
    return {
        "holder": record.holder,
        "incarnation": record.incarnation,
        "term": record.term,
        "transitions": record.transitions,
        "lease_ms": record.lease // _MILLISECOND,
        "acquired_at": to_micros(record.acquired_at),
        "renewed_at": to_micros(record.renewed_at),
        "version": int(record.version),
    }


def _record(row: tuple[Any, ...]) -> Record:
    """From the columns in the table's order."""
    _, holder, incarnation, term, transitions, lease_ms, acquired_at, renewed_at, version = row
    return Record(
        holder=holder,
        incarnation=incarnation,
        term=term,
        transitions=transitions,
        lease=lease_ms * _MILLISECOND,
        acquired_at=from_micros(acquired_at),
        renewed_at=from_micros(renewed_at),
        version=str(version),
    )
