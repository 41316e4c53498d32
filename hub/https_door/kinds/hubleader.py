"""HubLeader, a kind of this project: which replica of the hub leads."""

from typing import Any

from hub.api.meta import document as doc
from hub.https_door.kinds.schemas import MOMENT, TEXT, Schema, record
from machinery.apiserver.resource import Column, Resource, TableRow, age_of
from machinery.apiserver.storage import Storage

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


def _status(row: TableRow, field: str) -> Any:
    return doc.mapping(row.document, "status").get(field, "")


def _age(field: str) -> Any:
    return lambda row: age_of(_status(row, field), row.now)


COLUMNS = (
    Column("Holder", lambda row: _status(row, "holder") or NOBODY, description="The replica that leads."),
    Column("Term", lambda row: _status(row, "term"), type="integer", description="Rises with every taking."),
    Column("Since", _age("acquireTime"), description="How long ago the term began."),
    Column("Renewed", _age("renewTime"), description="How long ago the holder renewed the lock."),
    Column("Transitions", lambda row: _status(row, "transitions"), type="integer", description="How often the holder changed."),
    Column("Lease", lambda row: _status(row, "leaseDuration"), description="How long it stands unrenewed.", priority=1),
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
