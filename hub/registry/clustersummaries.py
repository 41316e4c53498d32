"""ClusterSummary `fleet`, a kind of this project: the number of clusters in each state, counted by the database on read.

It is the only object and is not stored. The only accepted write is `spec.releaseBrake`.
"""

from collections.abc import Sequence
from typing import Any

from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.selection import CONDITIONS, HUB_ACCEPTS, VERSION
from hub.ports import Transaction
from hub.registry.generic.definition import computed, own_resource
from hub.registry.generic.schemas import FLAG, INT64, MOMENT, TEXT, cell, described, record
from hub.registry.generic.virtual import ComputedObject, ComputedStorage
from hub.registry.liveness import brake
from machinery.apiserver.resource import Column, TableRow, age_of
from machinery.apiserver.storage import Actor, GroupResource, UpdateFunc
from machinery.errors import MethodNotAllowedError
from machinery.meta import conditions
from machinery.meta.objects import Key, StoredObject
from machinery.meta.timestamps import format_time

_NUMBERS = {"type": "object", "additionalProperties": INT64}
SCHEMA = record(
    "ClusterSummary counts the managed clusters by their state. There is one, named fleet; it is counted when somebody looks.",
    spec=record(
        "What may be asked of it.",
        releaseBrake=described(FLAG, "true, written: the brake lets go. It is done and not kept."),
    ),
    status=record(
        "The counts.",
        clusters=described(INT64, "All clusters."),
        accepted=described(INT64, "Those that the hub accepts."),
        waiting=described(INT64, "Those that wait for an operator, or were denied."),
        available=described(_NUMBERS, "By availability: True, False, Unknown, or Never heard of."),
        brake=record(
            "Whether taints, alarms, stale marks and removals wait, because a large part of the fleet became silent at once.",
            holds=FLAG,
            since=MOMENT,
            silent=described(INT64, "Clusters that had fallen silent when it was put on."),
            fleet=described(INT64, "Of so many that lived before."),
            message=TEXT,
        ),
        versions=described(_NUMBERS, "By Kubernetes version."),
    ),
)


def _brake_cell(row: TableRow) -> str:
    state = doc.mapping(row.document, "status", "brake")
    return f"held for {age_of(str(state.get('since')), row.now)}" if state.get("holds") else "off"


_COUNTS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("Clusters", ("clusters",), "All managed clusters."),
    ("Accepted", ("accepted",), "Those that the hub accepts."),
    ("Waiting", ("waiting",), "Those that it does not accept."),
    ("Available", ("available", "True"), "Those that are well."),
    ("Unavailable", ("available", "False"), "Those whose agent says that they are not well."),
    ("Unknown", ("available", "Unknown"), "Those that have fallen silent."),
    ("Never", ("available", "Never"), "Those that were never heard of."),
)
_COLUMNS = (
    *(Column(name, cell("status", *path, absent=0), "integer", description=about) for name, path, about in _COUNTS),
    Column("Brake", _brake_cell, description="Whether taints and removals are held, and since when."),
)
NEVER = "Never"
"""State of clusters without the condition Available, which have never sent a beat."""


class SummaryStorage(ComputedStorage):
    """Accepts the release of the brake as an update."""

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        """Releases the brake for `spec.releaseBrake`; nothing is stored."""
        new = change((await self.get(resource, key)).document)
        if new is None:
            raise MethodNotAllowedError(f"{resource} are counted, not deleted")
        if not dry_run and doc.mapping(new, "spec").get("releaseBrake") is True:
            await self._store.run(brake.release, actor.user)
        return await self.get(resource, key)


def _fleet(tx: Transaction) -> Sequence[ComputedObject]:
    accepted = tx.objects.tally(MANAGED_CLUSTERS, HUB_ACCEPTS)
    available = tx.objects.tally(MANAGED_CLUSTERS, CONDITIONS + conditions.AVAILABLE)
    versions = tx.objects.tally(MANAGED_CLUSTERS, VERSION)
    state = brake.now(tx)
    held: dict[str, Any] = {"holds": state.since is not None}
    if state.since is not None:
        counts = {"silent": state.silent, "fleet": state.fleet, "message": brake.held(state)}
        held |= {"since": format_time(state.since), **counts}
    status = {
        "clusters": sum(accepted.values()),
        "accepted": accepted.get("true", 0),
        "waiting": sum(count for value, count in accepted.items() if value != "true"),
        "available": {state or NEVER: count for state, count in sorted(available.items())},
        "versions": {version: count for version, count in sorted(versions.items()) if version},
        "brake": held,
    }
    return (ComputedObject("fleet", "ClusterSummary", {"status": status}),)


CLUSTER_SUMMARY = computed(
    own_resource(
        "clustersummaries", "ClusterSummary", SCHEMA, _COLUMNS, short_names=("fleet",), verbs=("get", "list", "update", "patch")
    ),
    _fleet,
    SummaryStorage,
)
