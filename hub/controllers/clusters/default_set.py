"""Puts ManagedClusters without a cluster set into `default`.

`hub.registry.managedclusters.service` does so for new clusters when they are stored. This controller handles clusters that
were stored before the set existed.
"""

from hub.api import managedclustersets as rules
from hub.api.meta import document as doc
from hub.controllers import ACTOR
from hub.controllers.batch import Batched
from hub.ports import Transaction
from hub.registry import managedclustersets as clustersets
from machinery.identity import ClusterName
from machinery.meta.objects import Document

NAME = "default-set"


def wanted(cluster: Document) -> bool:
    """Whether a step on this cluster would write."""
    return rules.lacks_set(cluster) and not doc.is_deleting(cluster)


class DefaultSet(Batched):
    """Labels many clusters in one transaction."""

    def step(self, tx: Transaction, name: str) -> None:
        clustersets.put_in_default(tx, ClusterName(name), f"{ACTOR}:{NAME}")
