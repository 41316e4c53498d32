"""Encoding of documents, instants and lists in rows: JSON with the revision, microseconds, sealed Secrets, API groups."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, func, select, update

from hub.api.meta.change import SEALED, Kind
from hub.store import schema
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


NO_KEY = "this hub was started without the key for Secrets"


class RowForm:
    """Row format of one hub: Secrets are sealed, and API groups have this hub's suffix.

    Without a seal, Secrets can be neither written nor read. Domain code writes the default suffix, which `grouped` replaces.
    """

    def __init__(self, seal: Seal | None, group_suffix: str) -> None:
        self._seal = seal
        self._suffix = group_suffix

    def grouped(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document with this hub's suffix in its API group."""
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
        seal, count, column = self._needed, 0, table.c
        for row in connection.execute(select(table).where(column.kind.in_(SEALED))).all():
            kind, key, document = Kind(row.kind), Key(row.namespace, row.name), bytes(row.document)
            if document[:HEADER] != seal.header:
                place = (column.kind == kind, column.namespace == key.namespace, column.name == key.name)
                sealed = self.row(kind, key, self.document(kind, key, document))
                renewal = update(table).where(*place, column.revision == row.revision).values(document=sealed)
                count += connection.execute(renewal).rowcount
        return count


_TABLES = (schema.objects, schema.changes)


def _headers(connection: Connection) -> set[bytes]:
    """The headers of all sealed rows. A header identifies the key."""
    found = set()
    for table in _TABLES:
        header = func.substr(table.c.document, 1, HEADER)
        found |= {bytes(row[0]) for row in connection.execute(select(header).distinct().where(table.c.kind.in_(SEALED)))}
    return found


def _place(kind: Kind, key: Key) -> str:
    return f"{kind} {key}"
