"""A ManagedCluster's exclusive set, as OCM's webhook has it: where there is a set `default`, no cluster is without one."""

from typing import Any

from hub.api.managedclustersets import clusterset as rules
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_SETS, Document, Key
from hub.ports import Transaction


def with_default(tx: Transaction, cluster: Document) -> dict[str, Any]:
    """The ManagedCluster in the set `default`, if it is in none and the hub has that set."""
    if doc.is_deleting(cluster) or not rules.lacks_set(cluster):
        return dict(cluster)
    found = tx.objects.get(CLUSTER_SETS, Key("", rules.DEFAULT))
    return dict(cluster) if found is None or doc.is_deleting(found.document) else rules.in_default(cluster)
