"""HubLeaders on the HTTPS door: each lock that replicas compete for, as the database has it when somebody looks.

Nobody makes or changes one here: they are written by the election alone.
"""

from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.apiserver.storage import not_found
from hub.apiserver.virtual import VirtualStorage
from hub.ports import Transaction
from machinery.apiserver.storage import GroupResource, Key, Page, Selection, Stored
from machinery.durations import format_duration
from machinery.election.lock import Record
from machinery.timestamps import format_micro_time

KIND = "HubLeader"


class LeaderStorage(VirtualStorage):
    """One look at the database for each answer; the objects' resourceVersion is the store's revision then."""

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        records, revision = await self._store.read(_look)
        return self._stored(key.name, records[key.name], revision) if key.name in records else not_found(resource, key)

    async def list(
        self,
        resource: GroupResource,
        selection: Selection,
        *,
        limit: int | None = None,
        after: Key | None = None,
        at: int | None = None,
    ) -> Page:
        del resource, limit, at  # there are as many as there are locks: one
        records, revision = await self._store.read(_look)
        chosen = [
            self._stored(name, record, revision)
            for name, record in records.items()
            if selection.labels.matches({})
            and selection.fields.matches({"metadata.name": name, "metadata.namespace": ""})
            and (after is None or name > after.name)
        ]
        return Page(tuple(chosen), revision)

    def _stored(self, name: str, record: Record, revision: int) -> Stored:
        metadata = {"name": name, "uid": str(uuid5(NAMESPACE_OID, f"{KIND}/{name}")), "resourceVersion": str(revision)}
        document = {"apiVersion": self._api_version, "kind": KIND, "metadata": metadata, "status": _status(record)}
        return Stored(Key("", name), revision, msgspec.json.encode(document))


def _look(tx: Transaction) -> tuple[dict[str, Record], int]:
    return dict(tx.leaders.all()), tx.changes.newest()


def _status(record: Record) -> dict[str, Any]:
    return {
        "holder": record.holder,
        "term": record.term,
        "transitions": record.transitions,
        "leaseDuration": format_duration(record.lease),
        "acquireTime": format_micro_time(record.acquired_at),
        "renewTime": format_micro_time(record.renewed_at),
    }
