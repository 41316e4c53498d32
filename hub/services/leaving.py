"""A cluster leaves the hub by its own word."""

from hub.domain import document as doc
from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.change import MANAGED_CLUSTERS, Key
from hub.domain.revocation import CLUSTER_DELETED, CLUSTER_LEFT
from hub.ports import Transaction
from hub.services import certificates, clusters, owners
from machinery.identity import ClusterName

ENDED = (CLUSTER_LEFT, CLUSTER_DELETED)
"""Why the certificates of a cluster that has left are revoked, whoever said that it should."""


def leave(tx: Transaction, cluster: ClusterName, cluster_uid: str, actor: str) -> bool:
    """Deletes the ManagedCluster as an operator would, and revokes its certificates at once; whether it was there until now.

    What belongs to it goes in its order afterwards. Raises AlreadyExistsError when another cluster has the name.
    """
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    if stored is not None:
        owners.check_same(stored, cluster_uid)
    certificates.revoke_cluster(tx, cluster, CLUSTER_LEFT)
    if stored is None or doc.is_deleting(stored.document):
        return False
    clusters.remove(tx, stored, actor)
    return True


def has_left(record: CertificateRecord, cluster: str) -> bool:
    """Whether a certificate opens nothing because the cluster, its agent's, has left."""
    is_agents = record.purpose is Purpose.AGENT and record.cluster == cluster
    return is_agents and record.revoked_at is not None and record.revoked_reason in ENDED
