"""The newest heartbeat of each cluster, the mark of each replica (the period in which it could store beats), and transitions.

A transition is a change of a cluster's availability. Transitions are kept in the order in which they were written.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnClause,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from hub.api.liveness import Beat, Checkpoint, LastBeat
from hub.api.managedclusters.availability import PARTED, Transition
from hub.ports.liveness import Heartbeats, Marks, Transitions
from hub.store import schema
from hub.store.engine.encoding import from_micros, to_micros
from hub.store.engine.engine import insert_into, upsert
from hub.store.engine.statements import Statement
from hub.store.tables.records import RowMapper, SqlTable, is_in
from machinery.identity import ClusterName
from machinery.meta.conditions import FALSE, TRUE, UNKNOWN

_column = schema.heartbeats.c
_ROW = RowMapper(LastBeat, schema.heartbeats)


_NONE: ColumnElement[Any] = literal_column("NULL")
_NO_EPOCH: ColumnElement[int] = literal_column("0")


def _upsert(dialect: str) -> Any:
    """INSERT of a beat. Its epoch is only compared with the recorded epoch, which `claim` and `depart` raise."""
    parameters: dict[str, BindParameter[Any]] = {name: bindparam(name) for name in ("cluster", "at", "available", "epoch")}
    new = insert_into(schema.heartbeats, dialect).values(parameters)
    is_newer = or_(_column.at.is_(None), new.excluded.at >= _column.at)
    is_owners = or_(_column.epoch.is_(None), new.excluded.epoch == _NO_EPOCH, new.excluded.epoch >= _column.epoch)
    return new.on_conflict_do_update(
        index_elements=[_column.cluster],
        set_={"at": new.excluded.at, "available": func.coalesce(new.excluded.available, _column.available), "owner": _NONE},
        where=and_(is_newer, is_owners),
    )


def _owning(dialect: str) -> Any:
    new = insert_into(schema.heartbeats, dialect).values({name: bindparam(name) for name in ("cluster", "owner", "epoch")})
    known = func.coalesce(_column.epoch, _NO_EPOCH)
    highest = case((new.excluded.epoch > known, new.excluded.epoch), else_=known)
    return new.on_conflict_do_update(index_elements=[_column.cluster], set_={"owner": new.excluded.owner, "epoch": highest})


def _row_with(*names: str) -> Callable[[str], Any]:
    """Return a function that makes the upsert of these columns of a cluster's row per dialect. None changes nothing."""

    def statement(dialect: str) -> Any:
        new = insert_into(schema.heartbeats, dialect).values({name: bindparam(name) for name in ("cluster", *names)})
        changed = {name: func.coalesce(new.excluded[name], _column[name]) for name in names}
        return new.on_conflict_do_update(index_elements=[_column.cluster], set_=changed)

    return statement


_ONE = select(schema.heartbeats).where(_column.cluster == bindparam("cluster"))
_ALL = Statement(select(schema.heartbeats).order_by(_column.cluster))
_OF = Statement(_ONE)
_OF_TO_WRITE = Statement(_ONE.with_for_update())
_FORGET = Statement(delete(schema.heartbeats).where(_column.cluster == bindparam("of_cluster")))
_UPSERT = Statement(_upsert)
_OWNING = Statement(_owning)
_SESSION = Statement(_row_with("session", "agent_version"))
_AVAILABLE = Statement(_row_with("available"))
_IS_OF_SESSION = and_(_column.cluster == bindparam("of_cluster"), _column.session == bindparam("of_session"))
_END_SESSION = Statement(update(schema.heartbeats).where(_IS_OF_SESSION).values(session=_NONE))


class SqlHeartbeats(Heartbeats):
    """A writing transaction locks the beats that it reads, so that no newer beat is stored before its commit.

    A reading transaction sees one snapshot, so it reads the beat of a cluster once.
    """

    def __init__(self, connection: Connection, now: datetime, *, writable: bool) -> None:
        self._connection = connection
        self._now = to_micros(now)
        self._writable = writable
        self._seen: dict[ClusterName, LastBeat | None] = {}

    def store(self, beats: Iterable[Beat]) -> Mapping[ClusterName, int]:
        """Store the beats in the order of names, so that two replicas cannot deadlock.

        Refused beats are looked up only when fewer rows than beats were written, which is rare.
        """
        beats = sorted(beats, key=lambda beat: beat.cluster)
        rows = [
            {
                "cluster": beat.cluster,
                "at": self._now - round(beat.age.total_seconds() * 1_000_000),
                "available": beat.available,
                "epoch": beat.epoch,
            }
            for beat in beats
        ]
        if _UPSERT.run_many(self._connection, rows) == len(rows):
            return {}
        known = ((beat, self.of(beat.cluster)) for beat in beats if beat.epoch)
        return {beat.cluster: last.epoch for beat, last in known if last is not None and last.outdates(beat.epoch)}

    def of(self, cluster: ClusterName) -> LastBeat | None:
        if self._writable or cluster not in self._seen:
            row = (_OF_TO_WRITE if self._writable else _OF).row(self._connection, {"cluster": cluster})
            self._seen[cluster] = None if row is None else _ROW.record(row)
        return self._seen[cluster]

    def all(self, among: Collection[ClusterName] | None = None) -> Sequence[LastBeat]:
        if among is None:
            return [_ROW.record(row) for row in _ALL.rows(self._connection, {})]
        names = frozenset(among)
        chosen = select(schema.heartbeats).where(is_in(_column.cluster, names)).order_by(_column.cluster)
        return [beat for beat in map(_ROW.record, self._connection.execute(chosen)) if beat.cluster in names]

    def set_session(self, cluster: ClusterName, session: str | None, *, agent_version: str | None = None) -> None:
        _SESSION.run(self._connection, {"cluster": cluster, "session": session, "agent_version": agent_version})

    def end_session(self, cluster: ClusterName, session: str) -> None:
        _END_SESSION.run(self._connection, {"of_cluster": cluster, "of_session": session})

    def set_available(self, cluster: ClusterName, *, available: bool) -> None:
        _AVAILABLE.run(self._connection, {"cluster": cluster, "available": available})

    def claim(self, cluster: ClusterName, epoch: int) -> None:
        _OWNING.run(self._connection, {"cluster": cluster, "owner": None, "epoch": epoch})

    def depart(self, cluster: ClusterName, owner: str, epoch: int) -> None:
        _OWNING.run(self._connection, {"cluster": cluster, "owner": owner, "epoch": epoch})

    def lower_epochs(self, epoch: int, *, above: int, cluster: ClusterName | None = None) -> int:
        lowered = update(schema.heartbeats).where(_column.epoch > above).values(epoch=epoch)
        return self._connection.execute(lowered if cluster is None else lowered.where(_column.cluster == cluster)).rowcount

    def forget(self, cluster: ClusterName) -> None:
        _FORGET.run(self._connection, {"of_cluster": cluster})


_marks = schema.hearing
_mark = _marks.c
_ALL_MARKS = Statement(select(_marks).order_by(_mark.replica))
_LOCKED = Statement(select(_marks).order_by(_mark.replica).with_for_update())


_MARK = Statement(partial(upsert, _marks))
_CHECKPOINT = RowMapper(Checkpoint, _marks)


class SqlMarks(SqlTable, Marks):
    """The table `hearing`, one row per replica."""

    def all(self) -> Sequence[Checkpoint]:
        return [_CHECKPOINT.record(row) for row in _ALL_MARKS.rows(self._connection, {})]

    def put(self, mark: Checkpoint) -> None:
        _MARK.run(self._connection, _CHECKPOINT.values(mark))

    def restart_coverage(self, now: datetime) -> None:
        moment = to_micros(now)
        _LOCKED.rows(self._connection, {})  # locked in name order, so that two replicas cannot deadlock
        self._connection.execute(delete(_marks))
        beat = schema.heartbeats.c.at
        self._connection.execute(update(schema.heartbeats).where(beat > moment).values(at=moment))

    def forget(self, before: datetime) -> None:
        self._connection.execute(delete(_marks).where(_mark.at < to_micros(before)))


_transitions = schema.transitions
_transition = _transitions.c
_newer = _transitions.alias()
_TRANSITION = RowMapper(Transition, _transitions)
_ADD_TRANSITION = Statement(
    insert(_transitions).values(
        {name: bindparam(name) for name in ("cluster", "uid", "at", "before", "status", "reason", "actor")}
    )
)
_TRUE: ColumnClause[str] = literal_column(f"'{TRUE}'")
_FALSE: ColumnClause[str] = literal_column(f"'{FALSE}'")
_UNKNOWN: ColumnClause[str] = literal_column(f"'{UNKNOWN}'")
_PARTED: list[ColumnClause[str]] = [literal_column(f"'{reason}'") for reason in sorted(PARTED)]
_IS_FALL = and_(
    _transition.before == _TRUE,
    or_(_transition.status == _FALSE, _transition.status == _UNKNOWN),
    *(_transition.reason != reason for reason in _PARTED),
)
_SINCE = _transition.at > bindparam("since")
_OF_FALLS = select(_transition.cluster, _transition.at).where(_SINCE, _IS_FALL).order_by(_transition.at)
_FALLS = Statement(_OF_FALLS)
FALLS_BY_CLUSTER = (
    select(_transition.cluster, func.count().label("falls")).where(_SINCE, _IS_FALL).group_by(_transition.cluster)
)
"""Counts per cluster how often it has lost its availability after `since` (parameter, in microseconds)."""
_FALLS_OF_ONE = Statement(_OF_FALLS.where(_transition.cluster == bindparam("cluster")))
FEW = 8
"""Up to this number of clusters, each cluster is queried separately."""
_SILENT = Statement(
    select(func.count()).where(
        _SINCE,
        _transition.status == _UNKNOWN,
        _transition.before != _UNKNOWN,
        _transition.reason == bindparam("reason"),
        ~select(_newer.c.id).where(_newer.c.cluster == _transition.cluster, _newer.c.id > _transition.id).exists(),
    )
)


class SqlTransitions(SqlTable, Transitions):
    def add(self, transition: Transition) -> None:
        _ADD_TRANSITION.run(self._connection, _TRANSITION.values(transition))

    def of(
        self, cluster: ClusterName | None, *, limit: int, since: datetime | None = None, until: datetime | None = None
    ) -> Sequence[Transition]:
        newest = (_transition.id.desc(),) if cluster is not None else (_transition.at.desc(), _transition.id.desc())
        chosen = select(_transitions).order_by(*newest).limit(limit)
        if cluster is not None:
            chosen = chosen.where(_transition.cluster == cluster)
        if since is not None:
            chosen = chosen.where(_transition.at >= to_micros(since))
        if until is not None:
            chosen = chosen.where(_transition.at <= to_micros(until))
        return [_TRANSITION.record(row) for row in self._connection.execute(chosen)]

    def falls(self, since: datetime, among: Collection[ClusterName] | None = None) -> Mapping[ClusterName, Sequence[datetime]]:
        values = {"since": to_micros(since)}
        among = None if among is None else frozenset(among)
        if among is not None and len(among) <= FEW:
            rows = [row for one in among for row in _FALLS_OF_ONE.rows(self._connection, {**values, "cluster": one})]
        elif among is not None:
            of_some = _OF_FALLS.where(is_in(_transition.cluster, among))
            rows = [(row.cluster, row.at) for row in self._connection.execute(of_some, values)]
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
        oldest = select(_transition.id).where(_transition.at < to_micros(before)).order_by(_transition.at).limit(limit)
        return self._connection.execute(delete(_transitions).where(_transition.id.in_(oldest))).rowcount
