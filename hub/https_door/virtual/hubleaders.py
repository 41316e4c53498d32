"""The HubLeader: the lock of the leader election, read from the database.

It is written by the election only.
"""

from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.https_door.storage.storage import not_found
from hub.https_door.storage.virtual import VirtualStorage
from hub.ports import Transaction
from machinery.apiserver.storage import GroupResource, Key, Page, Selection, Stored
from machinery.durations import format_duration
from machinery.election.lock import LockRecord
from machinery.meta.timestamps import format_micro_time

NAME, KIND = "hub", "HubLeader"


class LeaderStorage(VirtualStorage):
    """Each answer is one read of the database; the resourceVersion is the store's revision."""

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        record, revision = await self._store.read(_look)
        return not_found(resource, key) if record is None or key.name != NAME else _stored(self._api_version, record, revision)

    async def list(
        self,
        resource: GroupResource,
        selection: Selection,
        *,
        limit: int | None = None,
        after: Key | None = None,
        at: int | None = None,
    ) -> Page:
        del resource, limit, at  # there is one at most
        record, revision = await self._store.read(_look)
        is_chosen = (
            selection.labels.matches({})
            and selection.fields.matches({"metadata.name": NAME, "metadata.namespace": ""})
            and (after is None or after.name < NAME)
        )
        if record is None or not is_chosen:
            return Page((), revision)
        return Page((_stored(self._api_version, record, revision),), revision)


def _look(tx: Transaction) -> tuple[LockRecord | None, int]:
    return tx.leaders.record(), tx.changes.newest()


def _stored(api_version: str, record: LockRecord, revision: int) -> Stored:
    metadata = {"name": NAME, "uid": str(uuid5(NAMESPACE_OID, f"{KIND}/{NAME}")), "resourceVersion": str(revision)}
    document = {"apiVersion": api_version, "kind": KIND, "metadata": metadata, "status": _status(record)}
    return Stored(Key("", NAME), revision, msgspec.json.encode(document))


def _status(record: LockRecord) -> dict[str, Any]:
    return {
        "holder": record.holder,
        "term": record.term,
        "transitions": record.transitions,
        "leaseDuration": format_duration(record.lease),
        "acquireTime": format_micro_time(record.acquired_at),
        "renewTime": format_micro_time(record.renewed_at),
    }
