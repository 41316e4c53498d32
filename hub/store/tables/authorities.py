"""The hub's CAs, the state of each CA at each replica, and the CAs that each agent trusts."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import and_, bindparam, case, delete, func, insert, select, update

from hub.api.certificateauthorities.authority import AgentTrust, AuthorityId, AuthorityRecord, Follower, HeldCertificate
from hub.api.certificates import Purpose
from hub.ports.identities import AuthorityRecords, Trusts
from hub.store import schema
from hub.store.engine.encoding import from_micros, optional_instant, to_micros
from hub.store.engine.engine import insert_into, upsert
from hub.store.engine.notify import REVOCATIONS, notify_all
from hub.store.engine.statements import Statement
from hub.store.tables.records import RowMapper, SqlTable
from machinery.identity import AgentId, ClusterName

_row = schema.authorities.c
_ROW = RowMapper(AuthorityRecord, schema.authorities, columns={"within": "within_us"})
_FOLLOWER = RowMapper(Follower, schema.authority_followers)
_follower = schema.authority_followers.c
_signed = schema.certificates.c


class SqlAuthorities(SqlTable, AuthorityRecords):
    def all(self) -> Sequence[AuthorityRecord]:
        rows = self._connection.execute(select(schema.authorities).order_by(_row.created_at, _row.id))
        return [_ROW.record(row) for row in rows]

    def put(self, authority: AuthorityRecord) -> None:
        values = _ROW.values(authority)
        new = insert_into(schema.authorities, self._connection.dialect.name).values(values)
        self._connection.execute(new.on_conflict_do_update(index_elements=[_row.id], set_=values))
        notify_all(self._connection, REVOCATIONS)

    def sealed_key(self, authority: AuthorityId) -> bytes | None:
        chosen = select(_row.sealed_key).where(_row.id == authority)
        sealed: bytes | None = self._connection.execute(chosen).scalar_one_or_none()
        return sealed

    def keep_key(self, authority: AuthorityId, sealed: bytes | None) -> None:
        self._connection.execute(update(schema.authorities).where(_row.id == authority).values(sealed_key=sealed))

    def followers(self) -> Sequence[Follower]:
        order = (_follower.replica, _follower.authority)
        rows = self._connection.execute(select(schema.authority_followers).order_by(*order))
        return [_FOLLOWER.record(row) for row in rows]

    def follow(self, replica: str, known: Sequence[Follower]) -> None:
        self._connection.execute(delete(schema.authority_followers).where(_follower.replica == replica))
        rows = [_FOLLOWER.values(each, replica=replica) for each in known]
        if rows:
            self._connection.execute(insert(schema.authority_followers), rows)

    def signed(self, now: datetime) -> Mapping[tuple[str, Purpose], int]:
        keys = (_signed.signed_by, _signed.purpose)
        rows = self._connection.execute(select(*keys, func.count()).where(*_open(now)).group_by(*keys))
        return {(signed_by, Purpose(purpose)): count for signed_by, purpose, count in rows}

    def held(self, purpose: Purpose, now: datetime) -> Sequence[HeldCertificate]:
        of_purpose = (*_open(now), _signed.purpose == purpose.value, _signed.cluster.is_not(None), _signed.agent.is_not(None))
        chosen = (_signed.cluster, _signed.agent, _signed.signed_by, func.max(_signed.issued_at))
        by = (_signed.cluster, _signed.agent, _signed.signed_by)
        newest: dict[tuple[str, str], HeldCertificate] = {}
        for cluster, agent, signed_by, issued_at in self._connection.execute(select(*chosen).where(*of_purpose).group_by(*by)):
            held = HeldCertificate(ClusterName(cluster), AgentId(agent), signed_by, from_micros(issued_at))
            before = newest.get((cluster, agent))
            if before is None or before.issued_at <= held.issued_at:
                newest[cluster, agent] = held
        return [newest[key] for key in sorted(newest)]

    def clusters_without_certificate(self, signed_by: str, reason: str, now: datetime) -> Sequence[ClusterName]:
        of_agents = select(_signed.cluster).where(_signed.purpose == Purpose.AGENT.value, _signed.cluster.is_not(None))
        lost = of_agents.where(_signed.signed_by == signed_by, _signed.revoked_reason == reason).distinct()
        standing = of_agents.where(*_open(now))
        rows = self._connection.execute(lost.where(_signed.cluster.not_in(standing)).order_by(_signed.cluster))
        return [ClusterName(row.cluster) for row in rows]

    def revoke_signed(self, signed_by: str, at: datetime, reason: str) -> int:
        changed = update(schema.certificates).where(and_(*_open(at), _signed.signed_by == signed_by))
        count = self._connection.execute(changed.values(revoked_at=to_micros(at), revoked_reason=reason)).rowcount
        if count:
            notify_all(self._connection, REVOCATIONS)
        return count


def _open(now: datetime) -> tuple[Any, ...]:
    return (_signed.revoked_at.is_(None), _signed.not_after >= to_micros(now))


_trusted = schema.trusts.c
_TRUST = RowMapper(
    AgentTrust, schema.trusts, trusted=(lambda names: " ".join(sorted(names)), lambda text: frozenset(text.split()))
)
_PUT = Statement(partial(upsert, schema.trusts))
_GET = Statement(select(schema.trusts).where(_trusted.cluster == bindparam("cluster"), _trusted.agent == bindparam("agent")))
_ALL = Statement(select(schema.trusts).order_by(_trusted.cluster, _trusted.agent))
_ENDS = Statement(select(_trusted.cluster, func.max(_trusted.not_after)).group_by(_trusted.cluster))
_LAST = select(func.max(_trusted.not_after).label("ends")).group_by(_trusted.cluster).subquery()
_FORGET = Statement(delete(schema.trusts).where(_trusted.cluster == bindparam("cluster")))


class SqlTrusts(SqlTable, Trusts):
    def get(self, cluster: ClusterName, agent: AgentId) -> AgentTrust | None:
        row = _GET.row(self._connection, {"cluster": cluster, "agent": agent})
        return _TRUST.record(row) if row is not None else None

    def all(self) -> Sequence[AgentTrust]:
        return [_TRUST.record(row) for row in _ALL.rows(self._connection, {})]

    def ends(self) -> Mapping[ClusterName, datetime]:
        return {ClusterName(cluster): from_micros(end) for cluster, end in _ENDS.rows(self._connection, {})}

    def ending(self, moments: Sequence[datetime]) -> Sequence[int]:
        until = [func.coalesce(func.sum(case((_LAST.c.ends <= to_micros(moment), 1), else_=0)), 0) for moment in moments]
        return [int(count) for count in self._connection.execute(select(*until, func.count()).select_from(_LAST)).one()]

    def first_end(self, after: datetime) -> datetime | None:
        first = select(func.min(_LAST.c.ends)).where(_LAST.c.ends > to_micros(after))
        return optional_instant(self._connection.execute(first).scalar_one())

    def put(self, trust: AgentTrust) -> None:
        _PUT.run(self._connection, _TRUST.values(trust))

    def forget(self, cluster: ClusterName) -> None:
        _FORGET.run(self._connection, {"cluster": cluster})
