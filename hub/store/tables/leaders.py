"""The leader lock (row HUB of the tables `leaders` and `terms`), and the table `facts`: names and values about this hub."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog
from sqlalchemy import Connection, bindparam, delete, insert, select, text, update

from hub.api import hubreplicas
from hub.ports import Facts
from hub.ports.liveness import Leaders
from hub.store import schema
from hub.store.engine.encoding import to_micros
from hub.store.engine.engine import insert_into
from hub.store.engine.statements import Statement
from hub.store.tables.records import RowMapper, SqlTable
from machinery.election.lock import Candidate, LockRecord
from machinery.errors import ConflictError, NotLeaderError

_column, _term = schema.leaders.c, schema.terms.c
HUB = "hub"
_LOCKED = _column.lock == HUB
_HELD = (_LOCKED, _column.holder != "", _column.incarnation == bindparam("incarnation_"), _column.term == bindparam("term_"))
_RECORD = Statement(select(schema.leaders).where(_LOCKED))
_FOR_UPDATE = Statement(select(_column.term, _column.version).where(_LOCKED).with_for_update())
_NEXT_TERM = update(schema.terms).where(_term.lock == HUB).values(term=_term.term + 1).returning(_term.term)
_REQUIRE = Statement(select(_term.term).where(_term.lock == HUB).with_for_update(read=True))
_MILLISECOND = timedelta(milliseconds=1)
_LOCK = RowMapper(
    LockRecord,
    schema.leaders,
    columns={"lease": "lease_ms"},
    lease=(lambda lease: lease // _MILLISECOND, lambda count: count * _MILLISECOND),
    version=(int, str),
    status=None,
)
OVER = "another replica leads now: the write of an earlier term was not committed"
LOST = "another candidate holds the lock, or the term is another one"

log = structlog.get_logger(__name__)


class SqlLeaders(Leaders):
    """The tables `leaders` and `terms`. `now` is called only when an instant is written."""

    def __init__(self, connection: Connection, now: Callable[[], datetime]) -> None:
        self._connection = connection
        self._now = now

    def record(self) -> LockRecord | None:
        row = _RECORD.row(self._connection, {})
        return None if row is None else _LOCK.record(row)

    def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        row = _FOR_UPDATE.row(self._connection, {})
        if (None if row is None else tuple(row)) != (None if seen is None else (seen.term, int(seen.version))):
            raise ConflictError("another candidate has taken the lock")
        now = self._now()
        taken = LockRecord(
            holder=candidate.identity,
            incarnation=candidate.incarnation,
            term=self._next_term(),
            transitions=0 if seen is None else seen.transitions + (seen.holder != candidate.identity),
            lease=lease,
            acquired_at=now,
            renewed_at=now,
            version="1" if seen is None else str(int(seen.version) + 1),
        )
        if seen is None:
            self._connection.execute(insert(schema.leaders).values(lock=HUB, **_LOCK.values(taken)))
        else:
            self._connection.execute(update(schema.leaders).where(_LOCKED).values(_LOCK.values(taken)))
        self._note(taken)
        return taken

    def _note(self, taken: LockRecord) -> None:
        """Record the term for a later report. A report's writer must lock the term, so no report is written concurrently."""
        facts = SqlFacts(self._connection)
        terms = _unreported(facts.get(hubreplicas.UNREPORTED_TERMS))
        began = hubreplicas.TermStart(taken.term, taken.holder, taken.acquired_at)
        facts.set(hubreplicas.UNREPORTED_TERMS, hubreplicas.encode_terms(terms.followed_by(began)))

    def _next_term(self) -> int:
        first = insert_into(schema.terms, self._connection.dialect.name).values(lock=HUB, term=0)
        self._connection.execute(first.on_conflict_do_nothing())
        following: int = self._connection.execute(_NEXT_TERM).scalar_one()
        return following

    def renew(self, held: LockRecord) -> LockRecord:
        if self._connection.dialect.name == "postgresql":
            # a crash of the database's machine may lose the newest renewal, without harm
            self._connection.execute(text("SET LOCAL synchronous_commit TO off"))
        now = self._now()
        changed = self._change(held, renewed_at=to_micros(now))
        if changed is None:
            raise ConflictError(LOST)
        return replace(held, renewed_at=now, version=changed)

    def release(self, held: LockRecord) -> bool:
        return self._change(held, holder="") is not None

    def _change(self, held: LockRecord, **values: Any) -> str | None:
        change = update(schema.leaders).where(*_HELD).values(version=_column.version + 1, **values).returning(_column.version)
        place = {"incarnation_": held.incarnation, "term_": held.term}
        version = self._connection.execute(change, place).scalars().first()
        return None if version is None else str(version)

    def require(self, term: int) -> None:
        row = _REQUIRE.row(self._connection, {})
        if row is None or row[0] != term:
            raise NotLeaderError(OVER)


def _unreported(text: str | None) -> hubreplicas.UnreportedTerms:
    """Decode unreported terms. Skips a value of another release that cannot be decoded, so that the replica can lead."""
    try:
        return hubreplicas.decode_terms(text)
    except msgspec.DecodeError as error:
        log.warning("unreported changes of leader cannot be decoded and are skipped", error=str(error))
        return hubreplicas.UnreportedTerms()


class SqlFacts(SqlTable, Facts):
    def get(self, name: str) -> str | None:
        return self._connection.execute(select(schema.facts.c.value).where(schema.facts.c.name == name)).scalar_one_or_none()

    def set(self, name: str, value: str) -> None:
        self._connection.execute(delete(schema.facts).where(schema.facts.c.name == name))
        self._connection.execute(insert(schema.facts), {"name": name, "value": value})

    def settle(self, name: str, value: str) -> str:
        """Return the fact's value; first set a missing fact to `value`. A concurrent call waits for the commit."""
        new = insert_into(schema.facts, self._connection.dialect.name).values(name=name, value=value)
        self._connection.execute(new.on_conflict_do_nothing(index_elements=[schema.facts.c.name]))
        chosen = select(schema.facts.c.value).where(schema.facts.c.name == name)
        settled: str = self._connection.execute(chosen).scalar_one()
        return settled
