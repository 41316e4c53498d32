"""HubLeader, a kind of this project: the lock of the leader election, read-only."""

from collections.abc import Sequence

from hub.ports import Transaction
from hub.registry.generic.definition import computed, own_resource
from hub.registry.generic.schemas import INT64, MOMENT, TEXT, age_cell, cell, described, record
from hub.registry.generic.virtual import ComputedObject
from machinery.apiserver.resource import Column
from machinery.durations import format_duration
from machinery.meta.timestamps import format_micro_time

NOBODY = "<nobody>"
SCHEMA = record(
    "HubLeader is the lock of the leader election. Its holder is the leader and runs the controllers.",
    status=record(
        "The lock in the database.",
        holder=described(TEXT, "The leader; empty: the lock was released."),
        term=described(INT64, "Increases with each acquisition; transactions of an earlier term are rejected."),
        transitions=described(INT64, "How often the holder changed."),
        leaseDuration=described(TEXT, "Time without a renewal after which another replica acquires the lock."),
        acquireTime=described(MOMENT, "Start of the term, by the database's clock."),
        renewTime=described(MOMENT, "Last renewal; not needed with an embedded database."),
    ),
)


_TRANSITIONS = cell("status", "transitions", absent="")
COLUMNS = (
    Column("Holder", lambda row: cell("status", "holder")(row) or NOBODY, description="The leader."),
    Column("Term", cell("status", "term", absent=""), type="integer", description="Increases with each acquisition."),
    Column("Since", age_cell("status", "acquireTime"), description="Time since the start of the term."),
    Column("Renewed", age_cell("status", "renewTime"), description="Time since the last renewal."),
    Column("Transitions", _TRANSITIONS, type="integer", description="How often the holder changed."),
    Column(
        "Lease",
        cell("status", "leaseDuration", absent=""),
        description="Time without a renewal after which another replica acquires it.",
        priority=1,
    ),
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


HUB_LEADER = computed(own_resource("hubleaders", "HubLeader", SCHEMA, COLUMNS), _leader)
