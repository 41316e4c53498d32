"""Use case: record the result of a clock comparison."""

from datetime import timedelta

from hub.api.managedclusters import availability as rules
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.meta.change import MANAGED_CLUSTERS, Key
from hub.ports import Transaction
from hub.registry.managedclusters import service as clusters
from machinery.identity import ClusterName


def note(tx: Transaction, cluster: ClusterName, skew: timedelta, limit: timedelta, actor: str) -> None:
    """Set the condition if its status changed. Ignored if the cluster does not exist or is not accepted."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    if stored is None or not cluster_rules.is_accepted(stored.document):
        return
    condition = rules.clock_condition(stored.document, skew, limit)
    if rules.is_clock_news(stored.document, condition):
        clusters.set_condition(tx, cluster, condition, actor)
