"""Counts the ManagedClusters of a selection, grouped by some of their values, in the database."""

from collections.abc import Sequence

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.meta.ordering import Facet
from hub.api.query.sorting import groups_of
from hub.ports import Store, Transaction
from machinery.apiserver.resource import Counts, Groups
from machinery.meta.objects import Query


def cluster_counts(store: Store) -> Counts:
    """For `Resource.counts`: `groupBy` uses the fields of `where`; without a field, or with `*`, it counts all."""

    async def count(text: str, query: Query) -> tuple[Sequence[str], Groups, int]:
        facets = groups_of(text) if text not in ("", "*") else ()
        groups, revision = await store.read(_counted, query, facets)
        return [facet.word for facet in facets], groups, revision

    return count


def _counted(tx: Transaction, query: Query, facets: Sequence[Facet]) -> tuple[Groups, int]:
    revision = tx.changes.newest()
    if not facets:
        return [((), tx.objects.count(MANAGED_CLUSTERS, query))], revision
    found = tx.objects.groups(query, facets)
    return sorted(found.items(), key=lambda group: (-group[1], [value or "" for value in group[0]])), revision
