"""How rows hold documents, instants and lists: JSON with the revision, microseconds, sealed Secrets, API groups."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, bindparam, func, select, update

from hub.api.meta.change import SEALED, Kind
from hub.store import schema
from hub.store.engine.statements import Statement
from machinery.errors import InvalidError, UnavailableError
from machinery.meta.objects import Document, Key
from machinery.pki.encryption import HEADER, Seal, shown
from machinery.product import GROUP_SUFFIX, suffixed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def optional_instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


_encoder = msgspec.json.Encoder()


def encode(document: Document, revision: int | None) -> bytes:
    """Encode the document as served at `revision`; None before the commit."""
    metadata = {**document["metadata"]}
    metadata.pop("resourceVersion", None)
    if revision is not None:
        metadata["resourceVersion"] = str(revision)
    return _encoder.encode({**document, "metadata": metadata})


def encode_values(values: Mapping[str, str]) -> str:
    return _encoder.encode(values).decode() if values else ""


def decode_values(text: str) -> dict[str, str]:
    return msgspec.json.decode(text, type=dict[str, str]) if text else {}


def encode_names(names: tuple[str, ...]) -> str:
    return _encoder.encode(names).decode()


def decode_names(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])


def decode(encoded: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(encoded)
    return decoded


NO_KEY = "this hub was started without a key for Secrets"


class RowForm:
    """Row format of one hub: Secrets are sealed, and API groups have this hub's suffix.

    Without a seal, kinds that must be sealed can be neither written nor read. Domain code writes the default suffix; `grouped`
    replaces it.
    """

    def __init__(self, seal: Seal | None, group_suffix: str) -> None:
        self._seal = seal
        self._suffix = group_suffix

    def grouped(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document with this hub's suffix in its API group."""
        version = document.get("apiVersion")
        if self._suffix == GROUP_SUFFIX or not version:
            return document
        return {**document, "apiVersion": suffixed(version, self._suffix)}

    def row(self, kind: Kind, key: Key, document: bytes) -> bytes:
        """Encode a document for its row. Raises UnavailableError without a key."""
        return document if kind not in SEALED else self._needed.closed(document, _place(kind, key))

    def document(self, kind: Kind, key: Key, row: bytes) -> bytes:
        """Decode a row. Raises UnavailableError without a key."""
        return row if kind not in SEALED else self._needed.opened(row, _place(kind, key))

    @property
    def _needed(self) -> Seal:
        if self._seal is None:
            raise UnavailableError(NO_KEY)
        return self._seal

    def renew(self, connection: Connection) -> int:
        """Seal rows again that an older key sealed. Returns the number of rows. Raises InvalidError when a key is missing."""
        headers = _headers(connection)
        if missing := sorted(shown(header) for header in headers if self._seal is None or not self._seal.has_key_for(header)):
            raise InvalidError(
                f"the database holds Secrets that are sealed with the key {', '.join(missing)}, which this hub does not have: "
                "start it with the key file that belongs to the database"
            )
        if self._seal is None or headers <= {self._seal.header}:
            return 0
        return sum(self._renew(connection, table) for table in _TABLES)

    def _renew(self, connection: Connection, table: Table) -> int:
        seal, count = self._needed, 0
        for row in _rows(connection, table):
            kind, key, document = Kind(row.kind), Key(row.namespace, row.name), bytes(row.document)
            if document[:HEADER] != seal.header:
                values = {"of_revision": row.revision, "of_kind": kind, "of_namespace": key.namespace, "of_name": key.name}
                document = self.row(kind, key, self.document(kind, key, document))
                count += _RENEW[table].run(connection, {**values, "document": document})
        return count


def _renewal(table: Table) -> Statement:
    column = table.c
    where = (
        column.revision == bindparam("of_revision"),
        column.kind == bindparam("of_kind"),
        column.namespace == bindparam("of_namespace"),
        column.name == bindparam("of_name"),
    )
    return Statement(update(table).where(*where).values(document=bindparam("document")))


_TABLES = (schema.objects, schema.changes)
_RENEW = {table: _renewal(table) for table in _TABLES}


def _rows(connection: Connection, table: Table) -> Iterator[Any]:
    found: Sequence[Any] = connection.execute(select(table).where(table.c.kind.in_(SEALED))).all()
    yield from found


def _headers(connection: Connection) -> set[bytes]:
    """The headers of all sealed rows, which name their keys."""
    found = set()
    for table in _TABLES:
        header = func.substr(table.c.document, 1, HEADER)
        found |= {bytes(row[0]) for row in connection.execute(select(header).distinct().where(table.c.kind.in_(SEALED)))}
    return found


def _place(kind: Kind, key: Key) -> str:
    return f"{kind} {key}"
