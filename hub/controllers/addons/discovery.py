"""Owns the labels `feature.open-cluster-management.io/addon-<name>` of ManagedClusters: the state of each add-on.

Source: OCM's add-on feature discovery controller.
"""

from collections.abc import Callable, Mapping

from hub.api.managedclusteraddons import health as rules
from hub.api.meta import document as doc
from hub.controllers import ACTOR
from hub.controllers.batch import Batched
from hub.ports import Store, Transaction
from hub.registry.managedclusteraddons import service as addon_health
from machinery.identity import ClusterName
from machinery.meta.objects import Document

NAME = "addon-discovery"


class AddOnDiscovery(Batched):
    """`features`: returns the states of a cluster's add-ons, as of the followed change log."""

    def __init__(self, store: Store, features: Callable[[str], Mapping[str, str]]) -> None:
        super().__init__(store)
        self._features = features

    def wanted(self, cluster: Document) -> bool:
        """Whether a step on this cluster would write."""
        labelled = rules.with_labels(cluster, self._features(doc.name(cluster)))
        return doc.labels(labelled) != doc.labels(cluster)

    def step(self, tx: Transaction, name: str) -> None:
        addon_health.settle_labels(tx, ClusterName(name), f"{ACTOR}:{NAME}")
