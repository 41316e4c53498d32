"""HubLeader, a kind of this project: the lock of the leader election, which only the election writes."""

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
    "HubLeader is the lock that replicas of the hub compete for. Its holder leads: its controllers write, others rest.",
    status=record(
        "The lock as the database has it.",
        holder=described(TEXT, "The replica that leads; empty: the lock was released, and another takes it at once."),
        term=described(INT64, "Rises with every taking; what was begun in an earlier term is not committed."),
        transitions=described(INT64, "How often another replica than before took the lock."),
        leaseDuration=described(TEXT, "A holder that does not renew for so long is followed by another."),
        acquireTime=described(MOMENT, "When the term began, by the database's clock."),
        renewTime=described(MOMENT, "When the holder renewed last; on the embedded database nobody needs to."),
    ),
)


_TRANSITIONS = cell("status", "transitions", absent="")
COLUMNS = (
    Column("Holder", lambda row: cell("status", "holder")(row) or NOBODY, description="The replica that leads."),
    Column("Term", cell("status", "term", absent=""), type="integer", description="Rises with every taking."),
    Column("Since", age_cell("status", "acquireTime"), description="How long ago the term began."),
    Column("Renewed", age_cell("status", "renewTime"), description="How long ago the holder renewed the lock."),
    Column("Transitions", _TRANSITIONS, type="integer", description="How often the holder changed."),
    Column("Lease", cell("status", "leaseDuration", absent=""), description="How long it stands unrenewed.", priority=1),
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
    own_resource("hubleaders", "HubLeader", SCHEMA, COLUMNS),
    _leader,
)
