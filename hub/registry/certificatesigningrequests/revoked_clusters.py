"""A revoked cluster may register again only with a bootstrap credential that was created after the revocation."""

from datetime import datetime

from hub.api import revocations as rules
from hub.api.meta.change import REVOCATIONS, Query
from hub.ports import Transaction
from machinery.errors import DenialCause, ForbiddenError
from machinery.identity import ClusterName
from machinery.meta.selectors import Operator, Requirement
from machinery.meta.timestamps import format_time


def check(tx: Transaction, cluster: ClusterName, since: datetime) -> None:
    """Raise ForbiddenError if the cluster was revoked after `since`, when its bootstrap credential was created."""
    moment = revoked_at(tx, cluster)
    if moment is None or moment < since:
        return
    message = (
        f'cluster "{cluster}" was revoked at {format_time(moment)}, and this bootstrap credential is older: have a new one '
        f"made with `hubctl create bootstrap-kubeconfig --cluster {cluster}`"
    )
    raise ForbiddenError(message, causes=DenialCause.CLUSTER_REVOKED.because(message))


def revoked_at(tx: Transaction, cluster: ClusterName) -> datetime | None:
    """Time of the last revocation of the whole cluster; None: never."""
    if not tx.objects.has_any(REVOCATIONS):
        return None
    named = Requirement("spec.cluster", Operator.EQUALS, (cluster,))
    return rules.last_of_cluster(stored.document for stored in tx.objects.find(REVOCATIONS, Query(fields=(named,))).items)
