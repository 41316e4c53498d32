"""Owns `status.managedNamespaces` of ManagedClusters: the namespaces that their sets require.

Source: OCM's managed namespace controller. The agent's conditions of a namespace are kept while the namespace is required.
"""

from collections.abc import Callable, Iterable

from hub.api import managedclustersets as rules
from hub.api.managedclustersets import ClusterSet
from hub.api.meta import document as doc
from hub.controllers import ACTOR
from hub.controllers.batch import Batched
from hub.ports import Store, Transaction
from hub.registry import managedclustersets as clustersets
from machinery.identity import ClusterName
from machinery.meta.objects import Document

NAME = "managed-namespaces"


class ManagedNamespacesController(Batched):
    """`sets`: returns the existing sets, as of the followed change log."""

    def __init__(self, store: Store, sets: Callable[[], Iterable[ClusterSet]]) -> None:
        super().__init__(store)
        self._sets = sets

    def wanted(self, cluster: Document) -> bool:
        """Whether a step on this cluster would write."""
        if doc.is_deleting(cluster):
            return False
        told = list(doc.sequence(cluster, "status", "managedNamespaces"))
        return rules.managed_namespaces(cluster, self._sets()) != told

    def step(self, tx: Transaction, name: str) -> None:
        clustersets.settle_namespaces(tx, ClusterName(name), f"{ACTOR}:{NAME}")
