"""AuditRecords: read access to the hub's stored audit records."""

from datetime import UTC, datetime
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.api.auditrecords import AuditEntry, AuditPosition, AuditQuery, named
from hub.https_door.storage.storage import not_found
from hub.https_door.storage.virtual import VirtualStorage
from hub.ports import Transaction
from hub.registry.auditrecords import service as audit
from machinery.apiserver.storage import GroupResource, Key, Page, Selection, Stored
from machinery.errors import BadRequestError, TooLargeError
from machinery.meta.selectors import Operator, Requirement
from machinery.meta.timestamps import format_time, parse_time

KIND = "AuditRecord"
FIELDS = ("user", "verb", "resource", "namespace", "name")
SINCE, UNTIL = "since", "until"
MOST = 20_000
"""Records in one answer without `limit`."""
_NAME = "%Y%m%dt%H%M%S.%fz"

_encode = msgspec.json.Encoder().encode


class AuditStorage(VirtualStorage):
    """The audit log as objects in the order of time, which is also the order of their names."""

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        return self._stored(await self._store.read(_look, resource, key))

    async def list(
        self,
        resource: GroupResource,
        selection: Selection,
        *,
        limit: int | None = None,
        after: Key | None = None,
        at: int | None = None,
    ) -> Page:
        del resource, at
        query = _query(selection, limit, after)
        if query is None or not selection.labels.matches({}):
            return Page((), await self.revision())
        found, revision = await self._store.read(audit.find, query)
        if limit is None and len(found) > MOST:
            raise TooLargeError(
                f"more than {MOST} records are chosen: ask for pages with limit, or choose fewer by fieldSelector, "
                "as in since=2026-11-21T08:00:00Z,user=NAME"
            )
        items = tuple(self._stored(entry) for entry in found[:limit])
        more = limit is not None and len(found) > limit
        return Page(items, revision, items[-1].key if more else None)

    def _stored(self, entry: AuditEntry) -> Stored:
        """Prepends the object's metadata to the stored bytes of the record."""
        name = named(entry.at, entry.replica, entry.sequence)
        metadata = {
            "name": name,
            "uid": str(uuid5(NAMESPACE_OID, f"{entry.replica}/{entry.sequence}")),
            "creationTimestamp": format_time(entry.at),
            "resourceVersion": str(entry.sequence),
        }
        opening = _encode({"apiVersion": self._api_version, "kind": KIND, "metadata": metadata})
        return Stored(Key("", name), entry.sequence, opening[:-1] + b"," + entry.document[1:])


def _look(tx: Transaction, resource: GroupResource, key: Key) -> AuditEntry:
    place = _place(key.name)
    entries = tx.audit.find(AuditQuery(since=place.at, until=place.at)) if place else ()
    found = next((each for each in entries if named(each.at, each.replica, each.sequence) == key.name), None)
    if found is None:
        not_found(resource, key)
    return found


def _query(selection: Selection, limit: int | None, after: Key | None) -> AuditQuery | None:
    """Returns the query of a selection; None: no record can match. Raises BadRequestError."""
    equal: list[tuple[str, str]] = []
    unequal: list[tuple[str, str]] = []
    since: list[datetime] = []
    until: list[datetime] = []
    for term in selection.fields.requirements:
        value = term.values[0]
        if term.name in FIELDS:
            (equal if term.operator is Operator.EQUALS else unequal).append((term.name, value))
        elif term.name in (SINCE, UNTIL):
            (since if term.name == SINCE else until).append(_moment(term))
        elif term.name == "metadata.name":
            place = _place(value)
            if place is None or term.operator is not Operator.EQUALS:
                return None
            since.append(place.at)
            until.append(place.at)
        elif (value == "") is (term.operator is not Operator.EQUALS):  # metadata.namespace
            return None
    return AuditQuery(
        equal=tuple(equal),
        unequal=tuple(unequal),
        since=max(since, default=None),
        until=min(until, default=None),
        after=_place(after.name) if after is not None else None,
        limit=MOST if limit is None else limit,
    )


def _moment(term: Requirement) -> datetime:
    try:
        if term.operator is Operator.EQUALS:
            return parse_time(term.values[0])
    except ValueError:
        pass
    raise BadRequestError(f"{term.name}: must be an instant, as in {term.name}=2026-11-21T08:00:00Z")


def _place(name: str) -> AuditPosition | None:
    """Parses a name made by `named`; None: no record has it."""
    moment, _, rest = name.partition("-")
    replica, _, sequence = rest.rpartition("-")
    try:
        return AuditPosition(datetime.strptime(moment, _NAME).replace(tzinfo=UTC), replica, int(sequence))
    except ValueError:
        return None
