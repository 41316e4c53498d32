"""The CAs that each agent trusts, and the certificate that it holds."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, case, delete, func, select

from hub.api.certificateauthorities.authority import AgentTrust
from hub.ports import Trusts
from hub.store import schema
from hub.store.engine.engine import INSERTS
from hub.store.engine.instants import from_micros, optional_instant, to_micros
from hub.store.engine.statements import Statement
from machinery.identity import AgentId, ClusterName, SerialNumber

_row = schema.trusts.c
_NAMES = tuple(column.name for column in schema.trusts.columns)


def _upsert(dialect: str) -> Any:
    new = INSERTS[dialect](schema.trusts).values({name: bindparam(name) for name in _NAMES})
    told = {name: new.excluded[name] for name in _NAMES if name not in ("cluster", "agent")}
    return new.on_conflict_do_update(index_elements=[_row.cluster, _row.agent], set_=told)


_PUT = Statement.each(_upsert)
_GET = Statement(select(schema.trusts).where(_row.cluster == bindparam("cluster"), _row.agent == bindparam("agent")))
_ALL = Statement(select(schema.trusts).order_by(_row.cluster, _row.agent))
_ENDS = Statement(select(_row.cluster, func.max(_row.not_after)).group_by(_row.cluster))
_LAST = select(func.max(_row.not_after).label("ends")).group_by(_row.cluster).subquery()
_FORGET = Statement(delete(schema.trusts).where(_row.cluster == bindparam("cluster")))


class SqlTrusts(Trusts):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, cluster: ClusterName, agent: AgentId) -> AgentTrust | None:
        row = _GET.row(self._connection, {"cluster": cluster, "agent": agent})
        return _trust(row) if row is not None else None

    def all(self) -> Sequence[AgentTrust]:
        return [_trust(row) for row in _ALL.rows(self._connection, {})]

    def ends(self) -> Mapping[ClusterName, datetime]:
        return {ClusterName(cluster): from_micros(end) for cluster, end in _ENDS.rows(self._connection, {})}

    def ending(self, moments: Sequence[datetime]) -> Sequence[int]:
        until = [func.coalesce(func.sum(case((_LAST.c.ends <= to_micros(moment), 1), else_=0)), 0) for moment in moments]
        return [int(count) for count in self._connection.execute(select(*until, func.count()).select_from(_LAST)).one()]

    def first_end(self, after: datetime) -> datetime | None:
        first = select(func.min(_LAST.c.ends)).where(_LAST.c.ends > to_micros(after))
        return optional_instant(self._connection.execute(first).scalar_one())

    def put(self, trust: AgentTrust) -> None:
        values = {
            "cluster": trust.cluster,
            "agent": trust.agent,
            "trusted": None if trust.trusted is None else " ".join(sorted(trust.trusted)),
            "serial": f"{trust.serial:x}",
            "issued_at": to_micros(trust.issued_at),
            "not_after": to_micros(trust.not_after),
            "signed_by": trust.signed_by,
            "since": to_micros(trust.since),
        }
        _PUT.run(self._connection, values)

    def forget(self, cluster: ClusterName) -> None:
        _FORGET.run(self._connection, {"cluster": cluster})


def _trust(values: tuple[Any, ...]) -> AgentTrust:
    row = dict(zip(_NAMES, values, strict=True))
    return AgentTrust(
        cluster=ClusterName(row["cluster"]),
        agent=AgentId(row["agent"]),
        trusted=None if row["trusted"] is None else frozenset(row["trusted"].split()),
        serial=SerialNumber(int(row["serial"], 16)),
        issued_at=from_micros(row["issued_at"]),
        not_after=from_micros(row["not_after"]),
        signed_by=row["signed_by"],
        since=from_micros(row["since"]),
    )
