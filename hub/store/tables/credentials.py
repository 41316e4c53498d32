"""Bootstrap credentials with their uses and admitted cluster names, and the attested issuer of each cluster name."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, and_, bindparam, delete, exists, func, insert, or_, select, update

from hub.api.bootstrapcredentials import (
    DELETED,
    UNBOUND,
    AttestationRequirement,
    Binding,
    CredentialBounds,
    CredentialRecord,
    CredentialUse,
    UseCount,
)
from hub.ports.identities import Bindings, Credentials
from hub.store import schema
from hub.store.engine.encoding import to_micros
from hub.store.engine.engine import upsert
from hub.store.engine.notify import REVOCATIONS, notify_all
from hub.store.engine.statements import Statement
from hub.store.tables.records import RowMapper, SqlTable
from machinery.identity import AgentId, ClusterName, CredentialId

_column = schema.credentials.c
_admission = schema.admissions.c
_use = schema.credential_uses.c
_ONE = select(schema.credentials).where(_column.id == bindparam("id"))
_OF_CREDENTIAL = select(_admission.cluster).where(_admission.credential == bindparam("credential"))
_BY_ID = Statement(_ONE)
_BY_ID_TO_WRITE = Statement(_ONE.with_for_update())
_ADMITTED = Statement(_OF_CREDENTIAL)
_HAS_ADMITTED = Statement(_OF_CREDENTIAL.where(_admission.cluster == bindparam("cluster")))
_ADMIT = Statement(insert(schema.admissions))
_FORGET = delete(schema.admissions).where(_admission.cluster == bindparam("name"))
_FORGET_NAME = Statement(_FORGET)
_FORGET_NAME_OF = Statement(_FORGET.where(_admission.credential == bindparam("of")))
_OLDEST_FIRST = (_column.created_at, _column.id)
_VALID = Statement(
    select(schema.credentials)
    .where(_column.revoked_at.is_(None), _column.expires_at > bindparam("at"))
    .where(or_(_column.cluster.is_(None), _column.cluster == bindparam("name")))
    .order_by(*_OLDEST_FIRST)
)
_REVOKED = Statement(select(_column.id).where(_column.revoked_at >= bindparam("moment")))

_USES = Statement(
    select(schema.credential_uses)
    .where(_use.credential == bindparam("credential"))
    .order_by(_use.held_at, _use.cluster, _use.agent)
)
_THIS_USE = and_(_use.credential == bindparam("of"), _use.cluster == bindparam("by"), _use.agent == bindparam("who"))
_USE = Statement(select(schema.credential_uses).where(_THIS_USE))
_KEEP_USE = Statement(partial(upsert, schema.credential_uses))
_DROP_USE = Statement(delete(schema.credential_uses).where(_THIS_USE))
_WITHOUT_USE = ~exists().where(_use.credential == _admission.credential, _use.cluster == _admission.cluster)
_ISSUED = select(func.count(_use.issued_at), func.count()).where(_use.credential == bindparam("credential"))
_COUNTED = Statement(_ISSUED)
_UNCOUNTED = Statement(select(func.count()).where(_admission.credential == bindparam("credential"), _WITHOUT_USE))
_TALLIES = (
    select(_use.credential, func.count(_use.issued_at), func.count()).group_by(_use.credential),
    select(_admission.credential, func.count()).where(_WITHOUT_USE).group_by(_admission.credential),
)
_OF_USE = RowMapper(CredentialUse, schema.credential_uses)
_encoder = msgspec.json.Encoder()


class SqlCredentials(Credentials):
    """A writing transaction locks the credentials it reads, so that a use cannot be spent twice."""

    def __init__(self, connection: Connection, *, writable: bool) -> None:
        self._connection = connection
        self._writable = writable
        self._read: dict[CredentialId, CredentialRecord | None] = {}
        self._uses: dict[tuple[CredentialId, ClusterName, AgentId], CredentialUse | None] = {}

    def add(self, record: CredentialRecord) -> None:
        self._read.clear()
        self._connection.execute(insert(schema.credentials), _ROW.values(record))

    def by_id(self, credential: CredentialId) -> CredentialRecord | None:
        """Return the credential, read and locked once per transaction, because many requests of a batch may use it."""
        if credential not in self._read:
            row = (_BY_ID_TO_WRITE if self._writable else _BY_ID).row(self._connection, {"id": credential})
            self._read[credential] = None if row is None else _ROW.record(row)
        return self._read[credential]

    def admitted(self, credential: CredentialId) -> frozenset[ClusterName]:
        return frozenset(ClusterName(row[0]) for row in _ADMITTED.rows(self._connection, {"credential": credential}))

    def has_admitted(self, credential: CredentialId, cluster: ClusterName) -> bool:
        return _HAS_ADMITTED.row(self._connection, {"credential": credential, "cluster": cluster}) is not None

    def admit(self, credential: CredentialId, cluster: ClusterName, at: datetime) -> None:
        values = {"credential": credential, "cluster": cluster, "at": to_micros(at)}
        _ADMIT.run(self._connection, values)

    def forget_name(self, cluster: ClusterName, credential: CredentialId | None = None) -> None:
        if credential is None:
            _FORGET_NAME.run(self._connection, {"name": cluster})
        else:
            _FORGET_NAME_OF.run(self._connection, {"name": cluster, "of": credential})

    def uses(self, credential: CredentialId) -> Sequence[CredentialUse]:
        return [_OF_USE.record(row) for row in _USES.rows(self._connection, {"credential": credential})]

    def use_of(self, credential: CredentialId, cluster: ClusterName, agent: AgentId) -> CredentialUse | None:
        """Return the use. It is read once per transaction, because the transaction has locked the credential."""
        place = (credential, cluster, agent)
        if place not in self._uses:
            row = _USE.row(self._connection, {"of": credential, "by": cluster, "who": agent})
            self._uses[place] = None if row is None else _OF_USE.record(row)
        return self._uses[place]

    def keep_use(self, use: CredentialUse) -> None:
        self._uses.pop(_place(use), None)
        _KEEP_USE.run(self._connection, _OF_USE.values(use))

    def drop_use(self, use: CredentialUse) -> None:
        self._uses.pop(_place(use), None)
        _DROP_USE.run(self._connection, {"of": use.credential, "by": use.cluster, "who": use.agent})

    def tally(self, credential: CredentialId) -> UseCount:
        issued, of_all = _COUNTED.rows(self._connection, {"credential": credential})[0]
        names = _UNCOUNTED.rows(self._connection, {"credential": credential})[0][0]
        return UseCount(int(issued), int(of_all) - int(issued), int(names))

    def use_counts(self) -> Mapping[CredentialId, UseCount]:
        counted, uncounted = (self._connection.execute(statement).all() for statement in _TALLIES)
        found = {CredentialId(row[0]): UseCount(row[1], row[2] - row[1]) for row in counted}
        for credential, names in uncounted:
            found[credential] = replace(found.get(credential, UseCount()), names=names)
        return found

    def revoke(self, credential: CredentialId, at: datetime, *, by: str = "", reason: str = "") -> None:
        self._read.clear()
        chosen = (_column.id == credential, _column.revoked_at.is_(None))
        values = {"revoked_at": to_micros(at), "revoked_by": by or None, "revoked_reason": reason or None}
        self._connection.execute(update(schema.credentials).where(*chosen).values(**values))
        notify_all(self._connection, REVOCATIONS)

    def hide(self, credential: CredentialId) -> None:
        self._read.clear()
        chosen = (_column.id == credential, _column.revoked_at.is_not(None))
        self._connection.execute(update(schema.credentials).where(*chosen).values(revoked_reason=DELETED))

    def revoked_since(self, moment: datetime) -> Sequence[CredentialId]:
        return [CredentialId(row[0]) for row in _REVOKED.rows(self._connection, {"moment": to_micros(moment)})]

    def all(self) -> Sequence[CredentialRecord]:
        statement = select(schema.credentials).order_by(*_OLDEST_FIRST)
        return [_ROW.record(row) for row in self._connection.execute(statement)]

    def valid_for(self, cluster: ClusterName, at: datetime) -> Sequence[CredentialRecord]:
        rows = _VALID.rows(self._connection, {"at": to_micros(at), "name": cluster})
        return [record for record in map(_ROW.record, rows) if record.admits(cluster)]

    def forget_ended(self, before: datetime) -> int:
        self._read.clear()
        self._uses.clear()
        ended = or_(_column.expires_at < to_micros(before), _column.revoked_at < to_micros(before))
        chosen = select(_column.id).where(ended)
        for table, column in ((schema.credential_uses, _use.credential), (schema.admissions, _admission.credential)):
            self._connection.execute(delete(table).where(column.in_(chosen)))
        return self._connection.execute(delete(schema.credentials).where(ended)).rowcount


def _place(use: CredentialUse) -> tuple[CredentialId, ClusterName, AgentId]:
    return use.credential, use.cluster, use.agent


def _encoded(bounds: CredentialBounds) -> str | None:
    if bounds == UNBOUND:
        return None
    document = {
        "patterns": bounds.patterns,
        "clusterSet": bounds.cluster_set,
        "labels": dict(bounds.labels),
        "attestation": bounds.attestation.document() if bounds.attestation else None,
        "account": bounds.account,
    }
    return _encoder.encode(document).decode()


def _bounds(text: str) -> CredentialBounds:
    document: dict[str, Any] = msgspec.json.decode(text)
    demand = document.get("attestation")
    return CredentialBounds(
        tuple(document.get("patterns") or ()),
        document.get("clusterSet"),
        dict(document.get("labels") or {}),
        AttestationRequirement.of(demand) if demand else None,
        document.get("account") or "",
    )


_ROW = RowMapper(CredentialRecord, schema.credentials, bounds=(_encoded, _bounds))
_bound = schema.attestations.c
_BINDING = RowMapper(Binding, schema.attestations)
_OF = Statement(select(schema.attestations).where(_bound.cluster == bindparam("name")))
_BIND = Statement(insert(schema.attestations))
_RELEASE = Statement(delete(schema.attestations).where(_bound.cluster == bindparam("name")))


class SqlBindings(SqlTable, Bindings):
    def of(self, cluster: ClusterName) -> Binding | None:
        row = _OF.row(self._connection, {"name": cluster})
        return None if row is None else _BINDING.record(row)

    def bind(self, binding: Binding) -> None:
        _BIND.run(self._connection, _BINDING.values(binding))

    def release(self, cluster: ClusterName) -> None:
        _RELEASE.run(self._connection, {"name": cluster})
