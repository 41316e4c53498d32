"""HubLeader, a kind of this project: which replica of the hub leads.

The HubLeader: the lock of the leader election, read from the database.

It is written by the election only.
"""

from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.api.meta import document as doc
from hub.ports import Transaction
from hub.registry.generic.schemas import MOMENT, TEXT, Schema, record
from hub.registry.generic.virtual import VirtualStorage, not_found
from machinery.apiserver.resource import Column, Resource, TableRow, age_of
from machinery.apiserver.storage import GroupResource, Storage
from machinery.durations import format_duration
from machinery.election.lock import LockRecord
from machinery.meta.objects import Key, Page, Query, StoredObject
from machinery.meta.timestamps import format_micro_time

NOBODY = "<nobody>"
_NUMBER: Schema = {"type": "integer", "format": "int64"}
SCHEMA: Schema = record(
    "HubLeader is the lock that replicas of the hub compete for. Its holder leads: its controllers write, others rest.",
    status=record(
        "The lock as the database has it.",
        holder={**TEXT, "description": "The replica that leads; empty: the lock was released, and another takes it at once."},
        term={**_NUMBER, "description": "Rises with every taking; what was begun in an earlier term is not committed."},
        transitions={**_NUMBER, "description": "How often another replica than before took the lock."},
        leaseDuration={**TEXT, "description": "A holder that does not renew for so long is followed by another."},
        acquireTime={**MOMENT, "description": "When the term began, by the database's clock."},
        renewTime={**MOMENT, "description": "When the holder renewed last; on the embedded database nobody needs to."},
    ),
)


def _status_cell(row: TableRow, field: str) -> Any:
    return doc.mapping(row.document, "status").get(field, "")


def _age(field: str) -> Any:
    return lambda row: age_of(_status_cell(row, field), row.now)


COLUMNS = (
    Column("Holder", lambda row: _status_cell(row, "holder") or NOBODY, description="The replica that leads."),
    Column("Term", lambda row: _status_cell(row, "term"), type="integer", description="Rises with every taking."),
    Column("Since", _age("acquireTime"), description="How long ago the term began."),
    Column("Renewed", _age("renewTime"), description="How long ago the holder renewed the lock."),
    Column(
        "Transitions", lambda row: _status_cell(row, "transitions"), type="integer", description="How often the holder changed."
    ),
    Column("Lease", lambda row: _status_cell(row, "leaseDuration"), description="How long it stands unrenewed.", priority=1),
)


def hub_leader(group_suffix: str, storage: Storage) -> Resource:
    return Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="hubleaders",
        singular="hubleader",
        kind="HubLeader",
        verbs=("get", "list"),
        schema=SCHEMA,
        columns=COLUMNS,
        storage=storage,
    )


NAME, KIND = "hub", "HubLeader"


class LeaderStorage(VirtualStorage):
    """Each answer is one read of the database; the resourceVersion is the store's revision."""

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        record, revision = await self._store.read(_look)
        return not_found(resource, key) if record is None or key.name != NAME else _stored(self._api_version, record, revision)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        del resource  # there is one at most
        record, revision = await self._store.read(_look)
        is_chosen = query.matches(Key("", NAME), {}, {}) and (query.after is None or query.after.name < NAME)
        if record is None or not is_chosen:
            return Page((), revision)
        return Page((_stored(self._api_version, record, revision),), revision)


def _look(tx: Transaction) -> tuple[LockRecord | None, int]:
    return tx.leaders.record(), tx.changes.newest()


def _stored(api_version: str, record: LockRecord, revision: int) -> StoredObject:
    metadata = {"name": NAME, "uid": str(uuid5(NAMESPACE_OID, f"{KIND}/{NAME}")), "resourceVersion": str(revision)}
    document = {"apiVersion": api_version, "kind": KIND, "metadata": metadata, "status": _status(record)}
    return StoredObject(Key("", NAME), revision, msgspec.json.encode(document))


def _status(record: LockRecord) -> dict[str, Any]:
    return {
        "holder": record.holder,
        "term": record.term,
        "transitions": record.transitions,
        "leaseDuration": format_duration(record.lease),
        "acquireTime": format_micro_time(record.acquired_at),
        "renewTime": format_micro_time(record.renewed_at),
    }
