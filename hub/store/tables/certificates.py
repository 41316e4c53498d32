"""Certificate records, by serial, cluster, request, key and credential."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import (
    Connection,
    Integer,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from hub.api.certificates import CertificateRecord, Purpose
from hub.ports.identities import CertificateRecords
from hub.store import schema
from hub.store.engine.encoding import from_micros, to_micros
from hub.store.engine.notify import REVOCATIONS, notify_all
from hub.store.engine.statements import Statement
from hub.store.tables.records import RowMapper, hex_serial, is_in, parse_serial
from machinery.identity import ClusterName, CredentialId, SerialNumber

_column = schema.certificates.c
_ROW = RowMapper(CertificateRecord, schema.certificates)
_INSERT = Statement(insert(schema.certificates))
_SELECT = {
    name: select(schema.certificates).where(_column[name] == bindparam("value")).order_by(_column.issued_at, _column.serial)
    for name in ("serial", "cluster", "request_uid", "key_hash", "credential")
}
_BY = {name: Statement(statement) for name, statement in _SELECT.items()}
_BOOTSTRAP = Statement(_SELECT["credential"].where(_column.purpose == literal_column(f"'{Purpose.BOOTSTRAP.value}'")))
_LOGINS = Statement(_SELECT["credential"].where(_column.purpose == literal_column(f"'{Purpose.LOGIN.value}'")))
_REVOKED_SINCE = select(_column.serial, _column.revoked_reason).where(_column.revoked_at >= bindparam("moment"))
_REVOKED = Statement(_REVOKED_SINCE)
_LISTED = Statement(
    select(schema.certificates)
    .where(_column.revoked_at >= literal_column("0"), _column.not_after > bindparam("ended_after"))
    .order_by(_column.serial)
)
"""`revoked_at >= 0` instead of `is not null`, for which SQLite would not use the index."""
_earlier = schema.certificates.alias()
_HAS_EARLIER = exists().where(
    _earlier.c.cluster == _column.cluster,
    _earlier.c.agent == _column.agent,
    _earlier.c.purpose == _column.purpose,
    tuple_(_earlier.c.issued_at, _earlier.c.serial) < tuple_(_column.issued_at, _column.serial),
)
_ALL_ENDED = (
    select(_column.serial)
    .where(_column.purpose == bindparam("purpose"), _column.not_after < bindparam("ended_before"))
    .where(or_(_column.cluster.is_(None), _column.agent.is_(None), _HAS_EARLIER))
    .limit(bindparam("limit", type_=Integer))
)
_ENDED = Statement(_ALL_ENDED)
_ENDED_LOGINS = (
    select(_column.serial)
    .where(_column.purpose == literal_column(f"'{Purpose.LOGIN.value}'"), _column.not_after < bindparam("ended_before"))
    .limit(bindparam("limit", type_=Integer))
)
_FORGET_LOGINS = Statement(delete(schema.certificates).where(_column.serial.in_(_ENDED_LOGINS)))
LOOKED_FOR = (
    *(_SELECT[name] for name in ("serial", "cluster", "key_hash", "credential")),
    _REVOKED_SINCE,
    _ALL_ENDED,
    _ENDED_LOGINS,
)
"""Frequent or latency-critical queries over all certificates."""


class SqlCertificates(CertificateRecords):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._read: dict[SerialNumber, CertificateRecord | None] = {}

    def add(self, record: CertificateRecord) -> None:
        self._read.pop(record.serial, None)
        _INSERT.run(self._connection, _ROW.values(record))

    def by_serial(self, serial: SerialNumber) -> CertificateRecord | None:
        """Return the record, cached per transaction: many requests of a batch may use one bootstrap credential."""
        if serial not in self._read:
            found = self._by("serial", hex_serial(serial))
            self._read[serial] = found[0] if found else None
        return self._read[serial]

    def of_cluster(self, cluster: ClusterName) -> Sequence[CertificateRecord]:
        return self._by("cluster", cluster)

    def ends(self, among: Collection[ClusterName]) -> Mapping[ClusterName, datetime]:
        names = frozenset(among)
        is_valid = and_(_column.purpose == Purpose.AGENT.value, _column.revoked_at.is_(None))
        # not in WHERE: SQLite would then use the index of purpose or revoked_at, and read all certificates
        last = select(_column.cluster, func.max(case((is_valid, _column.not_after)))).group_by(_column.cluster)
        rows = self._connection.execute(last.where(is_in(_column.cluster, names)))
        return {ClusterName(cluster): from_micros(end) for cluster, end in rows if cluster in names and end is not None}

    def of_request(self, request_uid: str) -> Sequence[CertificateRecord]:
        return self._by("request_uid", request_uid)

    def of_key(self, key_hash: str) -> Sequence[CertificateRecord]:
        return self._by("key_hash", key_hash)

    def of_credential(self, credential: CredentialId) -> Sequence[CertificateRecord]:
        return [_ROW.record(row) for row in _BOOTSTRAP.rows(self._connection, {"value": credential})]

    def of_account(self, account: str) -> Sequence[CertificateRecord]:
        return [_ROW.record(row) for row in _LOGINS.rows(self._connection, {"value": account})]

    def forget_logins(self, ended_before: datetime, limit: int) -> int:
        self._read.clear()
        return _FORGET_LOGINS.run(self._connection, {"ended_before": to_micros(ended_before), "limit": limit})

    def ended(self, before: datetime, limit: int) -> Sequence[SerialNumber]:
        found: list[SerialNumber] = []
        for purpose in Purpose:
            values = {"purpose": purpose.value, "ended_before": to_micros(before), "limit": limit - len(found)}
            found += [parse_serial(row[0]) for row in _ENDED.rows(self._connection, values)]
        return found

    def forget(self, serials: Collection[SerialNumber]) -> int:
        self._read.clear()
        chosen = _column.serial.in_([hex_serial(serial) for serial in serials])
        return self._connection.execute(delete(schema.certificates).where(chosen)).rowcount

    def _by(self, column: str, value: str) -> list[CertificateRecord]:
        return [_ROW.record(row) for row in _BY[column].rows(self._connection, {"value": value})]

    def revoke(self, serials: Collection[SerialNumber], at: datetime, reason: str) -> None:
        """Revoke these certificates. Certificates that are already revoked keep their time and reason."""
        if serials:
            self._read.clear()
            chosen = (_column.serial.in_([hex_serial(serial) for serial in serials]), _column.revoked_at.is_(None))
            changed = update(schema.certificates).where(*chosen)
            self._connection.execute(changed.values(revoked_at=to_micros(at), revoked_reason=reason))
            notify_all(self._connection, REVOCATIONS)

    def revoked_since(self, moment: datetime) -> Mapping[SerialNumber, str]:
        found = _REVOKED.rows(self._connection, {"moment": to_micros(moment)})
        return {parse_serial(serial): reason or "" for serial, reason in found}

    def revoked(self, ended_after: datetime) -> Sequence[CertificateRecord]:
        return [_ROW.record(row) for row in _LISTED.rows(self._connection, {"ended_after": to_micros(ended_after)})]
