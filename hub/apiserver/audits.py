"""AuditRecords on the HTTPS door: what the hub remembers of requests, to be read and never to be written."""

from datetime import UTC, datetime
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.apiserver.storage import not_found
from hub.apiserver.virtual import VirtualStorage
from hub.domain.chain import AuditQuery, Link, Place, named
from hub.ports import Transaction
from hub.services import audit
from machinery.apiserver.storage import GroupResource, Key, Page, Selection, Stored
from machinery.errors import BadRequestError, TooLargeError
from machinery.selectors import Operator, Requirement
from machinery.timestamps import format_time, parse_time

KIND = "AuditRecord"
FIELDS = ("user", "verb", "resource", "namespace", "name")
SINCE, UNTIL = "since", "until"
MOST = 20_000
"""Records in one answer without `limit`."""
_NAME = "%Y%m%dt%H%M%S.%fz"

_encode = msgspec.json.Encoder().encode


class AuditStorage(VirtualStorage):
    """The audit log as objects, ordered by time, which is how their names sort."""

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        link = await self._store.read(_look, resource, key)
        return self._stored(link)

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
        items = tuple(self._stored(link) for link in found[:limit])
        more = limit is not None and len(found) > limit
        return Page(items, revision, items[-1].key if more else None)

    def _stored(self, link: Link) -> Stored:
        """The record's own bytes behind what makes an object of it."""
        name = named(link.at, link.replica, link.sequence)
        metadata = {
            "name": name,
            "uid": str(uuid5(NAMESPACE_OID, f"{link.replica}/{link.sequence}")),
            "creationTimestamp": format_time(link.at),
            "resourceVersion": str(link.sequence),
        }
        chain = {"replica": link.replica, "sequence": link.sequence, "previous": link.previous, "hash": link.hash}
        opening = _encode({"apiVersion": self._api_version, "kind": KIND, "metadata": metadata, "chain": chain})
        return Stored(Key("", name), link.sequence, opening[:-1] + b"," + link.document[1:])


def _look(tx: Transaction, resource: GroupResource, key: Key) -> Link:
    place = _place(key.name)
    found = tx.audit.links(place.replica, after=place.sequence - 1, limit=1) if place else ()
    if not found or named(found[0].at, found[0].replica, found[0].sequence) != key.name:
        not_found(resource, key)
    return found[0]


def _query(selection: Selection, limit: int | None, after: Key | None) -> AuditQuery | None:
    """What the selection asks of the log; None: nothing can fit it. Raises BadRequestError."""
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


def _place(name: str) -> Place | None:
    """What `named` put into a name; None: no record has it."""
    moment, _, rest = name.partition("-")
    replica, _, sequence = rest.rpartition("-")
    try:
        return Place(datetime.strptime(moment, _NAME).replace(tzinfo=UTC), replica, int(sequence))
    except ValueError:
        return None
