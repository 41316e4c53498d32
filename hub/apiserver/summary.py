"""ClusterSummary `fleet` on the HTTPS door: how many clusters there are in each state, counted by the database when asked.

There is one, nobody makes it, and nothing is stored of it.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.apiserver.storage import not_found
from hub.domain.change import MANAGED_CLUSTERS
from hub.domain.selectable import CONDITIONS, HUB_ACCEPTS, VERSION
from hub.ports import Store, Transaction
from machinery import conditions
from machinery.apiserver.storage import (
    Actor,
    Change,
    Document,
    Event,
    GroupResource,
    Key,
    Page,
    Selection,
    Storage,
    Stored,
)
from machinery.errors import MethodNotAllowedError

NAME, KIND = "fleet", "ClusterSummary"
NEVER = "Never"
"""The state of clusters that were never heard of: they have no such condition."""


class SummaryStorage(Storage):
    """One look at the database for each answer; the object's resourceVersion is the store's revision then."""

    def __init__(self, store: Store, api_version: str) -> None:
        self._store = store
        self._api_version = api_version

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

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> Stored:
        del key, document, actor, dry_run
        raise MethodNotAllowedError(f"{resource} are counted, not made")

    async def update(self, resource: GroupResource, key: Key, change: Change, actor: Actor, *, dry_run: bool = False) -> Stored:
        del key, change, actor, dry_run
        raise MethodNotAllowedError(f"{resource} are counted, not changed")

    def watch(
        self, resource: GroupResource, selection: Selection, *, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Event | int]]:
        del selection, after
        raise MethodNotAllowedError(f"{resource} cannot be watched")

    async def revision(self) -> int:
        return await self._store.read(lambda tx: tx.changes.newest())

    async def wait_for(self, revision: int) -> None:
        del revision  # what is counted is as new as the database

    async def _fleet(self) -> Stored:
        status, revision = await self._store.read(_count)
        metadata = {"name": NAME, "uid": str(uuid5(NAMESPACE_OID, KIND)), "resourceVersion": str(revision)}
        document = {"apiVersion": self._api_version, "kind": KIND, "metadata": metadata, "status": status}
        return Stored(Key("", NAME), revision, msgspec.json.encode(document))


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
    }
    return status, tx.changes.newest()
