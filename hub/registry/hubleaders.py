"""HubLeader, a kind of this project: the lock of the leader election, which only the election writes."""

from collections.abc import Sequence
from typing import Any

from hub.api.meta import document as doc
from hub.ports import Transaction
from hub.registry.generic.definition import computed
from hub.registry.generic.schemas import MOMENT, TEXT, Schema, record
from hub.registry.generic.virtual import ComputedObject
from machinery.apiserver.resource import Column, Resource, TableRow, age_of
from machinery.durations import format_duration
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


def _leader(tx: Transaction) -> Sequence[ComputedObject]:
    lock = tx.leaders.record()
    if lock is None:
        return ()
    status = {
        "holder": lock.holder,
        "term": lock.term,
        "transitions": lock.transitions,
        "leaseDuration": format_duration(lock.lease),
        "acquireTime": format_micro_time(lock.acquired_at),
        "renewTime": format_micro_time(lock.renewed_at),
    }
    return (ComputedObject("hub", "HubLeader/hub", {"status": status}),)


HUB_LEADER = computed(
    Resource(
        group="hub",
        version="v1alpha1",
        name="hubleaders",
        singular="hubleader",
        kind="HubLeader",
        verbs=("get", "list"),
        schema=SCHEMA,
        columns=COLUMNS,
    ),
    _leader,
)
