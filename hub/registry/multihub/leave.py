"""Use cases: an agent removes its own cluster from the hub, or withdraws its registration."""

from dataclasses import dataclass

from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests import request as requests
from hub.api.certificatesigningrequests.request import RequestPhase
from hub.api.managedclusters import cluster as rules
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.revocations import CLUSTER_DELETED, CLUSTER_LEFT
from hub.ports import Transaction
from hub.registry.certificates import service as certificates
from hub.registry.certificatesigningrequests import service as request_objects
from hub.registry.managedclusters import service as clusters
from hub.registry.multihub import owners
from machinery import pki
from machinery.errors import InvalidError
from machinery.identity import AgentId, ClusterName, agent_subject
from machinery.meta.objects import Key, StoredObject

ENDED = (CLUSTER_LEFT, CLUSTER_DELETED)
"""Revocation reasons of the certificates of a cluster that has left, by its own or an operator's decision."""
UNDECIDED = (RequestPhase.PENDING, RequestPhase.APPROVED)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Result of a withdrawal. `known`: something existed; `cluster_stays`: only operators can delete the cluster."""

    known: bool
    cluster_stays: bool


def leave(tx: Transaction, cluster: ClusterName, cluster_uid: str, actor: str) -> bool:
    """Delete the ManagedCluster as for an operator, and revoke its certificates at once. Returns False if it was already gone.

    Its content is removed in order afterwards. Raises AlreadyExistsError if another cluster has the name.
    """
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    if stored is not None:
        owners.check_same(stored, cluster_uid)
    certificates.revoke_cluster(tx, cluster, CLUSTER_LEFT)
    if stored is None or doc.is_deleting(stored.document):
        return False
    clusters.remove(tx, stored, actor)
    return True


def withdraw(
    tx: Transaction, cluster: ClusterName, agent: AgentId, cluster_uid: str, requester: CertificateRecord
) -> Withdrawn:
    """Delete what a bootstrap credential registered: undecided requests for this agent, and a cluster that only joined.

    The cluster is deleted if this credential admitted it, the uid matches, it was never accepted and no agent has a
    certificate.
    """
    found = request_objects.of_cluster(tx, cluster)
    own = [stored for stored in found if _is_undecided(stored, agent, cluster, requester.user)]
    for stored in own:
        request_objects.remove(tx, stored, requester.user)
    stored_cluster = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    admitted = requester.credential is not None and tx.credentials.has_admitted(requester.credential, cluster)
    if stored_cluster is None or not admitted or not rules.is_same_cluster(stored_cluster.document, cluster_uid):
        return Withdrawn(bool(own), cluster_stays=False)
    document = stored_cluster.document
    if rules.is_accepted(document) or rules.was_ever_accepted(document) or certificates.has_agent(tx, cluster):
        return Withdrawn(known=True, cluster_stays=True)
    clusters.remove(tx, stored_cluster, requester.user)
    return Withdrawn(known=True, cluster_stays=False)


def _is_undecided(stored: StoredObject, agent: AgentId, cluster: ClusterName, user: str) -> bool:
    """Whether this requester requested this agent's certificate, and it is not issued, denied or failed."""
    document = stored.document
    if doc.mapping(document, "spec").get("username") != user or requests.phase(document) not in UNDECIDED:
        return False
    try:
        return pki.parse_request(requests.pem(document)).subject == agent_subject(cluster, agent)
    except InvalidError:
        return False


def has_left(record: CertificateRecord, cluster: str) -> bool:
    """Whether an agent certificate was revoked because this cluster has left."""
    is_agents = record.purpose is Purpose.AGENT and record.cluster == cluster
    return is_agents and record.revoked_at is not None and record.revoked_reason in ENDED
