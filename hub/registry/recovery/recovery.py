"""Recovery: an agent with an expired certificate presents its recovery certificate; conditions and approval.

The recovery certificate proves possession of the previous key. Everything else is checked as of now: an agent that was denied,
revoked, replaced or deleted since cannot recover. An agent that a restored hub has created again waits for acceptance.
"""

from hub.api.certificates import Purpose
from hub.api.certificatesigningrequests.request import RequestPhase, Submission
from hub.api.managedclusters import cluster as clusters
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, Document, Key
from hub.ports import Transaction
from hub.registry.certificatesigningrequests import service as request_objects
from hub.registry.certificatesigningrequests import submission
from hub.registry.multihub import owners
from hub.registry.recovery import readoption
from machinery.errors import AlreadyExistsError, ForbiddenError, NotFoundError
from machinery.identity import ClusterName

ACTOR = "system:hub:recovery"
REASON = "RecoveredByItsKey"
MESSAGE = "The agent has shown the recovery certificate over its previous key, and the uid of its cluster is the one on record."


def recover(tx: Transaction, asked: Submission, *, unattended: bool) -> str:
    """Store or find the agent's request and, if `unattended`, approve it; return metadata.name.

    Raises InvalidError, TooManyRequestsError; ForbiddenError: the agent may not return; NotFoundError: the cluster was deleted;
    AlreadyExistsError: another cluster has the name.
    """
    _check_holder(tx, asked)
    _check_cluster(tx, asked)
    name = submission.enter(tx, asked)
    if unattended and not readoption.needs_approval(tx, asked.requester) and _is_pending(tx, name):
        request_objects.decide(tx, name, approve=True, reason=REASON, message=MESSAGE, actor=ACTOR)
    return name


def _is_pending(tx: Transaction, name: str) -> bool:
    return request_objects.state(tx, name).phase is RequestPhase.PENDING


def _check_holder(tx: Transaction, asked: Submission) -> None:
    holder = asked.requester
    if holder.purpose is not Purpose.RECOVERY or not holder.is_open(tx.now):
        raise ForbiddenError("only a recovery certificate that is valid and not revoked recovers an agent")
    if (holder.cluster, holder.agent) != (asked.cluster, asked.agent) or asked.addon is not None:
        raise ForbiddenError(
            f'this recovery certificate is for agent "{holder.agent}" of cluster "{holder.cluster}" and recovers nothing else'
        )


def _check_cluster(tx: Transaction, asked: Submission) -> None:
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", asked.cluster))
    if stored is None:
        raise NotFoundError(f'the ManagedCluster "{asked.cluster}" was deleted: register again with a bootstrap kubeconfig')
    if asked.requester.is_readopted and clusters.awaits_acceptance(stored.document):
        return  # no certificate is issued before acceptance
    _check_acceptance(stored.document, asked.cluster)
    if not clusters.is_same_cluster(stored.document, asked.cluster_uid):
        raise AlreadyExistsError(
            f'the cluster name "{asked.cluster}" belongs to a cluster with another uid: a rebuilt cluster registers again with '
            "a bootstrap kubeconfig, after the ManagedCluster of the old one was deleted"
        )
    newest = owners.own_agent(tx, asked.cluster)
    if newest != asked.agent:
        raise ForbiddenError(f'agent "{newest}" has taken the place of agent "{asked.agent}" in cluster "{asked.cluster}"')


def _check_acceptance(cluster: Document, name: ClusterName) -> None:
    if not clusters.is_accepted(cluster) or doc.is_deleting(cluster):
        raise ForbiddenError(f'cluster "{name}" is not accepted: an operator accepts it with `hubctl accept {name}`')
