"""ClusterSummary, a kind of this project: the number of clusters in each state, counted by the database on read."""

from collections.abc import Sequence
from typing import Any

from hub.api.certificateauthorities.authority import Phase
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.selection import CONDITIONS, HUB_ACCEPTS, VERSION
from hub.ports import BACKUP_MADE, Transaction
from hub.registry.generic import declared
from hub.registry.generic.definition import computed
from hub.registry.generic.virtual import ComputedObject, ComputedStorage
from hub.registry.liveness import brake
from machinery.apiserver.resource import TableRow
from machinery.apiserver.storage import Actor, GroupResource, UpdateFunc
from machinery.errors import MethodNotAllowedError
from machinery.meta import conditions
from machinery.meta.objects import Key, StoredObject
from machinery.meta.timestamps import age_of, format_time


def _brake_cell(row: TableRow) -> str:
    state = doc.mapping(row.document, "status", "brake")
    return f"held for {age_of(str(state.get('since')), row.now)}" if state.get("holds") else "off"


NEVER = "Never"
"""State of clusters without the condition Available, which have never sent a beat."""


class SummaryStorage(ComputedStorage):
    """Storage of the summary. An update of the summary can release the brake."""

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        new = change((await self.get(resource, key)).document)
        if new is None:
            raise MethodNotAllowedError(f"{resource} cannot be deleted")
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
        counts = {"silent": state.silent, "fleet": state.fleet, "message": brake.brake_message(state)}
        held |= {"since": format_time(state.since), **counts}
    status = {
        "clusters": sum(accepted.values()),
        "accepted": accepted.get("true", 0),
        "waiting": sum(count for value, count in accepted.items() if value != "true"),
        "available": {state or NEVER: count for state, count in sorted(available.items())},
        "versions": {version: count for version, count in sorted(versions.items()) if version},
        "brake": held,
        "certificateAuthorities": {
            each.id: each.phase.value for each in tx.authorities.all() if each.phase is not Phase.RETIRED
        },
    }
    made = tx.facts.get(BACKUP_MADE)
    status |= {"lastBackupTime": made} if made else {}
    return (ComputedObject("fleet", "ClusterSummary", {"status": status}),)


CLUSTER_SUMMARY = computed(declared("clustersummaries.hub", {"Brake": _brake_cell}), _fleet, SummaryStorage)
