"""Default of a ManagedCluster's exclusive set, as in OCM's webhook: the set `default`, if it exists."""

from typing import Any

from hub.api import managedclustersets as rules
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_SETS, Document, Key
from hub.ports import Transaction


def with_default(tx: Transaction, cluster: Document) -> dict[str, Any]:
    """The ManagedCluster in the set `default`, if it has no set and the hub has that set."""
    if doc.is_deleting(cluster) or not rules.lacks_set(cluster):
        return dict(cluster)
    found = tx.objects.get(CLUSTER_SETS, Key("", rules.DEFAULT))
    return dict(cluster) if found is None or doc.is_deleting(found.document) else rules.in_default(cluster)
