"""ClusterSummary `fleet`: the number of clusters in each state, counted by the database on read.

It is the only object and is not stored. The only accepted write is `spec.releaseBrake`.
"""

from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.api.liveness import Brake
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.selectable_fields import CONDITIONS, HUB_ACCEPTS, VERSION
from hub.https_door.storage.storage import not_found
from hub.https_door.storage.virtual import VirtualStorage
from hub.ports import Transaction
from hub.registry.liveness import brake
from machinery.apiserver.storage import Actor, Change, GroupResource, Key, Page, Selection, Stored
from machinery.errors import MethodNotAllowedError
from machinery.meta import conditions
from machinery.meta.timestamps import format_time

NAME, KIND = "fleet", "ClusterSummary"
NEVER = "Never"
"""State of clusters without the condition Available, which have never sent a beat."""


class SummaryStorage(VirtualStorage):
    """Each answer is one read of the database; the resourceVersion is the store's revision."""

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        return await self._fleet() if key.name == NAME else not_found(resource, key)

    async def list(
        self,
        resource: GroupResource,
        selection: Selection,
        *,
        limit: int | None = None,
        after: Key | None = None,
        at: int | None = None,
    ) -> Page:
        del resource, limit, at
        fleet = await self._fleet()
        fields = {"metadata.name": NAME, "metadata.namespace": ""}
        chosen = selection.labels.matches({}) and selection.fields.matches(fields) and after is None
        return Page((fleet,) if chosen else (), fleet.revision)

    async def update(self, resource: GroupResource, key: Key, change: Change, actor: Actor, *, dry_run: bool = False) -> Stored:
        """Releases the brake for `spec.releaseBrake`; nothing is stored."""
        if key.name != NAME:
            not_found(resource, key)
        new = change(msgspec.json.decode((await self._fleet()).document))
        if new is None:
            raise MethodNotAllowedError(f"{resource} are counted, not deleted")
        if not dry_run and doc.mapping(new, "spec").get("releaseBrake") is True:
            await self._store.run(brake.release, actor.user)
        return await self._fleet()

    async def _fleet(self) -> Stored:
        status, revision = await self._store.read(_count)
        metadata = {"name": NAME, "uid": str(uuid5(NAMESPACE_OID, KIND)), "resourceVersion": str(revision)}
        document = {"apiVersion": self._api_version, "kind": KIND, "metadata": metadata, "status": status}
        return Stored(Key("", NAME), revision, msgspec.json.encode(document))


def _brake(state: Brake) -> dict[str, Any]:
    if state.since is None:
        return {"holds": False}
    told = {"silent": state.silent, "fleet": state.fleet, "message": brake.held(state)}
    return {"holds": True, "since": format_time(state.since), **told}


def _count(tx: Transaction) -> tuple[dict[str, Any], int]:
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
    return status, tx.changes.newest()
