"""Re-examines all ManagedClusters after a change that may concern any of them."""

from collections.abc import Callable
from datetime import timedelta

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Store, Transaction
from machinery.meta.objects import Document, Key, Page, Query
from machinery.runtime.controller import Reconciler

NAME = "survey"
PAGE = 500


class ClusterResync(Reconciler[str]):
    """Enqueues the clusters for which `wanted` is true. It has only one key."""

    def __init__(self, store: Store, wanted: Callable[[Document], bool], enqueue: Callable[[str], None]) -> None:
        self._store = store
        self._wanted = wanted
        self._enqueue = enqueue

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        after: Key | None = None
        while True:
            page = await self._store.read(_page, after)
            for stored in page.items:
                if self._wanted(stored.document):
                    self._enqueue(stored.key.name)
            if (after := page.after) is None:
                return None


def _page(tx: Transaction, after: Key | None) -> Page:
    return tx.objects.find(MANAGED_CLUSTERS, Query(limit=PAGE, after=after))
