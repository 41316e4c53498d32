"""Use cases about add-ons' health: from the cluster's availability, and as labels of the cluster."""

from typing import Any

from hub.api.managedclusteraddons import health as addon_discovery
from hub.api.managedclusters.cluster import availability
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, Query, StoredObject
from hub.api.objects.managed_fields import HUB_WRITER
from hub.ports import Transaction
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.identity import ClusterName


def settle_health(tx: Transaction, cluster: ClusterName, actor: str) -> None:
    """Update `Available` of every add-on to match the cluster's. Raises NotFoundError."""
    available = availability(clusters.find(tx, cluster).document)
    for stored in _of_cluster(tx, cluster):
        new = addon_discovery.in_step(stored.document, available, tx.now)
        if doc.differs(new, stored.document):
            addons.put(tx, new, stored, actor, writer=HUB_WRITER)


def settle_labels(tx: Transaction, cluster: ClusterName, actor: str) -> None:
    """Update the ManagedCluster's labels to match its add-ons. Raises NotFoundError."""
    stored = clusters.find(tx, cluster)
    found = ((each.key.name, addon_discovery.label_state(each.document)) for each in _of_cluster(tx, cluster))
    states = {name: state for name, state in found if state is not None}
    new: dict[str, Any] = addon_discovery.with_labels(stored.document, states)
    if doc.differs(new, stored.document):
        clusters.put(tx, new, stored, actor, writer=HUB_WRITER)


def _of_cluster(tx: Transaction, cluster: ClusterName) -> tuple[StoredObject, ...]:
    return tx.objects.find(ADDONS, Query(namespace=cluster)).items
