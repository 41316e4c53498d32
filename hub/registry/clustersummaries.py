"""ClusterSummary `fleet`, a kind of this project: the number of clusters in each state, counted by the database on read.

It is the only object and is not stored. The only accepted write is `spec.releaseBrake`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hub.api.liveness import Brake
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.selection import CONDITIONS, HUB_ACCEPTS, VERSION
from hub.ports import Transaction
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.generic.schemas import MOMENT, TEXT, Schema, cell, described, record
from hub.registry.generic.virtual import ComputedObject, ComputedStorage
from hub.registry.liveness import brake
from machinery.apiserver.resource import Column, Resource, TableRow, age_of
from machinery.apiserver.storage import Actor, GroupResource, UpdateFunc
from machinery.errors import MethodNotAllowedError
from machinery.meta import conditions
from machinery.meta.objects import Key, StoredObject
from machinery.meta.timestamps import format_time

_NUMBER: Schema = {"type": "integer", "format": "int64"}
_NUMBERS: Schema = {"type": "object", "additionalProperties": _NUMBER}
SCHEMA: Schema = record(
    "ClusterSummary counts the managed clusters by their state. There is one, named fleet; it is counted when somebody looks.",
    spec=record(
        "What may be asked of it.",
        releaseBrake={"type": "boolean", "description": "true, written: the brake lets go. It is done and not kept."},
    ),
    status=record(
        "The counts.",
        clusters=described(_NUMBER, "All clusters."),
        accepted=described(_NUMBER, "Those that the hub accepts."),
        waiting=described(_NUMBER, "Those that wait for an operator, or were denied."),
        available=described(_NUMBERS, "By availability: True, False, Unknown, or Never heard of."),
        brake=record(
            "Whether taints, stale marks and removals are held, because a large part of the fleet fell silent at once.",
            holds={"type": "boolean"},
            since=MOMENT,
            silent=described(_NUMBER, "Clusters that had fallen silent when it was put on."),
            fleet=described(_NUMBER, "Of so many that lived before."),
            message=TEXT,
        ),
        versions=described(_NUMBERS, "By Kubernetes version."),
    ),
)


def _brake_cell(row: TableRow) -> str:
    state = doc.mapping(row.document, "status", "brake")
    return f"held for {age_of(str(state.get('since')), row.now)}" if state.get("holds") else "off"


def _column(name: str, cell: Callable[[TableRow], Any], description: str) -> Column:
    return Column(name, cell, type="integer", description=description)


_COLUMNS = (
    _column("Clusters", cell("status", "clusters", absent=0), "All managed clusters."),
    _column("Accepted", cell("status", "accepted", absent=0), "Those that the hub accepts."),
    _column("Waiting", cell("status", "waiting", absent=0), "Those that it does not accept."),
    _column("Available", cell("status", "available", "True", absent=0), "Those that are well."),
    _column("Unavailable", cell("status", "available", "False", absent=0), "Those whose agent says that they are not well."),
    _column("Unknown", cell("status", "available", "Unknown", absent=0), "Those that have fallen silent."),
    _column("Never", cell("status", "available", "Never", absent=0), "Those that were never heard of."),
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


def _brake(state: Brake) -> dict[str, Any]:
    if state.since is None:
        return {"holds": False}
    told = {"silent": state.silent, "fleet": state.fleet, "message": brake.held(state)}
    return {"holds": True, "since": format_time(state.since), **told}


def _fleet(tx: Transaction) -> Sequence[ComputedObject]:
    accepted = tx.objects.tally(MANAGED_CLUSTERS, HUB_ACCEPTS)
    available = tx.objects.tally(MANAGED_CLUSTERS, CONDITIONS + conditions.AVAILABLE)
    versions = tx.objects.tally(MANAGED_CLUSTERS, VERSION)
    status = {
        "clusters": sum(accepted.values()),
        "accepted": accepted.get("true", 0),
        "waiting": sum(count for value, count in accepted.items() if value != "true"),
        "available": {state or NEVER: count for state, count in sorted(available.items())},
        "versions": {version: count for version, count in sorted(versions.items()) if version},
        "brake": _brake(brake.now(tx)),
    }
    return (ComputedObject("fleet", "ClusterSummary", {"status": status}),)


CLUSTER_SUMMARY = ResourceDefinition(
    Resource(
        group="hub",
        version="v1alpha1",
        name="clustersummaries",
        singular="clustersummary",
        kind="ClusterSummary",
        short_names=("fleet",),
        verbs=("get", "list", "update", "patch"),
        schema=SCHEMA,
        columns=_COLUMNS,
    ),
    bind=lambda shown, store, _own: replace(shown, storage=SummaryStorage(store, shown, _fleet)),
    stored=False,
)
