"""Bootstrap credentials and the cluster names that each has admitted."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from hub.domain.credential import CredentialRecord
from hub.ports import Credentials
from hub.store import schema
from hub.store.instants import from_micros, optional_instant, optional_micros, to_micros
from hub.store.ringing import REVOCATIONS, ring_for_everybody
from hub.store.statement import Statement
from machinery.identity import ClusterName, CredentialId

_column = schema.credentials.c
_admission = schema.admissions.c
_ONE = select(schema.credentials).where(_column.id == bindparam("id"))
_OF_CREDENTIAL = select(_admission.cluster).where(_admission.credential == bindparam("credential"))
_BY_ID = Statement(_ONE)
_BY_ID_TO_WRITE = Statement(_ONE.with_for_update())
_ADMITTED = Statement(_OF_CREDENTIAL)
_HAS_ADMITTED = Statement(_OF_CREDENTIAL.where(_admission.cluster == bindparam("cluster")))
_SPENT = Statement(select(func.count()).where(_admission.credential == bindparam("credential")))
_ADMIT = Statement(insert(schema.admissions))
_REVOKED = Statement(select(_column.id).where(_column.revoked_at >= bindparam("moment")))
_NAMES = tuple(column.name for column in schema.credentials.columns)


class SqlCredentials(Credentials):
    """In a writing transaction a credential that was read is locked, so that its uses cannot be spent twice."""

    def __init__(self, connection: Connection, *, writable: bool) -> None:
        self._connection = connection
        self._writable = writable

    def add(self, record: CredentialRecord) -> None:
        values = {
            "id": record.id,
            "cluster": record.cluster,
            "uses": record.uses,
            "created_at": to_micros(record.created_at),
            "expires_at": to_micros(record.expires_at),
            "created_by": record.created_by,
            "revoked_at": optional_micros(record.revoked_at),
            "token_hash": record.token_hash,
        }
        self._connection.execute(insert(schema.credentials), values)

    def by_id(self, credential: CredentialId) -> CredentialRecord | None:
        row = (_BY_ID_TO_WRITE if self._writable else _BY_ID).row(self._connection, {"id": credential})
        return None if row is None else _record(row)

    def admitted(self, credential: CredentialId) -> frozenset[ClusterName]:
        return frozenset(ClusterName(row[0]) for row in _ADMITTED.rows(self._connection, {"credential": credential}))

    def has_admitted(self, credential: CredentialId, cluster: ClusterName) -> bool:
        return _HAS_ADMITTED.row(self._connection, {"credential": credential, "cluster": cluster}) is not None

    def spent(self, credential: CredentialId) -> int:
        return int(_SPENT.rows(self._connection, {"credential": credential})[0][0])

    def admit(self, credential: CredentialId, cluster: ClusterName, at: datetime) -> None:
        values = {"credential": credential, "cluster": cluster, "at": to_micros(at)}
        _ADMIT.run(self._connection, values)

    def revoke(self, credential: CredentialId, at: datetime) -> None:
        chosen = (_column.id == credential, _column.revoked_at.is_(None))
        self._connection.execute(update(schema.credentials).where(*chosen).values(revoked_at=to_micros(at)))
        ring_for_everybody(self._connection, REVOCATIONS)

    def revoked_since(self, moment: datetime) -> Sequence[CredentialId]:
        return [CredentialId(row[0]) for row in _REVOKED.rows(self._connection, {"moment": to_micros(moment)})]

    def all(self) -> Sequence[CredentialRecord]:
        statement = select(schema.credentials).order_by(_column.created_at, _column.id)
        return [_record(tuple(row)) for row in self._connection.execute(statement)]


def _record(values: tuple[Any, ...]) -> CredentialRecord:
    row = dict(zip(_NAMES, values, strict=True))
    return CredentialRecord(
        id=CredentialId(row["id"]),
        cluster=ClusterName(row["cluster"]) if row["cluster"] is not None else None,
        uses=row["uses"],
        created_at=from_micros(row["created_at"]),
        expires_at=from_micros(row["expires_at"]),
        created_by=row["created_by"],
        revoked_at=optional_instant(row["revoked_at"]),
        token_hash=row["token_hash"],
    )
