"""AuditRecord, a kind of this project: a request to the hub, its user and its outcome, as an event of `audit.k8s.io/v1`."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.api.auditrecords import DRY_RUN, AuditEntry, AuditPosition, AuditQuery, AuditSize, named
from hub.api.meta import document as doc
from hub.ports import Transaction
from hub.registry.generic import declared
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.generic.virtual import VirtualStorage, not_found, time_bounds
from machinery.apiserver.resource import TableRow
from machinery.apiserver.storage import GroupResource
from machinery.errors import BadRequestError, TooLargeError
from machinery.meta.objects import Key, Page, Query, SortPosition, StoredObject
from machinery.meta.selectors import Operator
from machinery.meta.timestamps import format_time


def _object(row: TableRow) -> str:
    """Returns the request's object as `resource/name/subresource`, or else its URI; for dropped records, their number."""
    reference = doc.mapping(row.document, "objectRef")
    if not reference:
        count = doc.mapping(row.document, "dropped").get("count")
        return f"{count} records dropped" if count else str(row.document.get("requestURI", ""))
    parts = [str(reference.get(part, "")) for part in ("resource", "name", "subresource")]
    return "/".join(part for part in parts if part)


def _verb(row: TableRow) -> str:
    """Returns the verb, followed by `(dry run)` if the request was a dry run."""
    dry = doc.mapping(row.document, "annotations").get(DRY_RUN)
    return f"{row.document.get('verb', '')}{' (dry run)' if dry else ''}"


def _is_newest_first(text: str, _place: SortPosition | None) -> bool:
    """Parses `sortBy`: whether the newest record comes first. Raises BadRequestError."""
    if text not in ("time", "-time"):
        raise BadRequestError(f"sortBy: audit records are sorted by time or -time, not by {text[:80]}")
    return text == "-time"


AUDIT_RECORD = ResourceDefinition(
    declared("auditrecords.hub", {"Verb": _verb, "Object": _object}, order=_is_newest_first),
    bind=lambda shown, store, _own: replace(shown, storage=AuditStorage(store, shown.api_version())),
    stored=False,
)


def sizes(tx: Transaction) -> tuple[int, Mapping[str, AuditSize]]:
    """Return the number of records of refused callers without an identity, and the size of all other records by user."""
    return sum(size.records for size in tx.audit.sizes(strangers=True).values()), tx.audit.sizes(strangers=False)


KIND = "AuditRecord"
FIELDS = ("user", "verb", "resource", "namespace", "name")
MAX_RECORDS = 20_000
"""Largest number of records in one answer without `limit`."""
_NAME = "%Y%m%dt%H%M%S.%fz"
"""Format of the time in a record's name."""
_encode = msgspec.json.Encoder().encode


class AuditStorage(VirtualStorage):
    """The audit log as objects in the order of time, which is also the order of their names."""

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        return self._stored(await self._store.read(_look, resource, key))

    async def list(self, resource: GroupResource, query: Query) -> Page:
        del resource
        limit, asked = query.limit, _audit_query(query)
        if asked is None or not all(term.matches({}) for term in query.labels):
            return Page((), await self.revision())
        found, revision = await self._store.read(lambda tx: (tx.audit.find(asked), tx.changes.newest()))
        if limit is None and len(found) > MAX_RECORDS:
            raise TooLargeError(
                f"the query selects more than {MAX_RECORDS} records: request pages with limit, or select fewer with "
                "fieldSelector, as in since=2026-11-21T08:00:00Z,user=NAME"
            )
        items = tuple(self._stored(entry) for entry in found[:limit])
        return Page(items, revision, items[-1].key if limit is not None and len(found) > limit else None)

    def _stored(self, entry: AuditEntry) -> StoredObject:
        """Prepends the object's metadata to the stored bytes of the record."""
        name = named(entry.at, entry.replica, entry.sequence)
        metadata = {
            "name": name,
            "uid": str(uuid5(NAMESPACE_OID, f"{entry.replica}/{entry.sequence}")),
            "creationTimestamp": format_time(entry.at),
            "resourceVersion": str(entry.sequence),
        }
        opening = _encode({"apiVersion": self._api_version, "kind": KIND, "metadata": metadata})
        return StoredObject(Key("", name), entry.sequence, opening[:-1] + b"," + entry.document[1:])


def _look(tx: Transaction, resource: GroupResource, key: Key) -> AuditEntry:
    place = _place(key.name)
    entries = tx.audit.find(AuditQuery(since=place.at, until=place.at)) if place else ()
    found = next((each for each in entries if named(each.at, each.replica, each.sequence) == key.name), None)
    if found is None:
        not_found(resource, key)
    return found


def _audit_query(query: Query) -> AuditQuery | None:
    """Returns the query for the audit log; None: no record can match. Raises BadRequestError."""
    equal: list[tuple[str, str]] = []
    unequal: list[tuple[str, str]] = []
    query, since, until = time_bounds(query)
    for term in query.fields:
        value = term.values[0]
        if term.name in FIELDS:
            (equal if term.operator is Operator.EQUALS else unequal).append((term.name, value))
        elif term.name == "metadata.name":
            place = _place(value)
            if place is None or term.operator is not Operator.EQUALS:
                return None
            since, until = max(since or place.at, place.at), min(until or place.at, place.at)
        elif (value == "") is (term.operator is not Operator.EQUALS):  # metadata.namespace
            return None
    return AuditQuery(
        equal=tuple(equal),
        unequal=tuple(unequal),
        since=since,
        until=until,
        after=_place(query.after.name) if query.after is not None else None,
        limit=MAX_RECORDS if query.limit is None else query.limit,
        newest_first=query.order is True,
    )


def _place(name: str) -> AuditPosition | None:
    """Parses a name made by `named`; None: no record has this name."""
    moment, _, rest = name.partition("-")
    replica, _, sequence = rest.rpartition("-")
    try:
        return AuditPosition(datetime.strptime(moment, _NAME).replace(tzinfo=UTC), replica, int(sequence))
    except ValueError:
        return None
