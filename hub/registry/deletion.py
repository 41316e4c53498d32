"""Deletion of clusters and namespaces in steps, with the write path of each kind, and unregistration by an agent."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice

from hub.api import certificatesigningrequests as requests, namespaces as namespace_rules
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests import Requester, RequestPhase
from hub.api.managed_fields import HUB_WRITER
from hub.api.managedclusters import cluster as cluster_rules, removal
from hub.api.managedclusters.removal import Remaining
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, Kind
from hub.api.revocations import CLUSTER_DELETED, CLUSTER_LEFT
from hub.ports import Transaction
from hub.registry import certificates, namespaces, owners
from hub.registry.certificatesigningrequests import service as request_objects
from hub.registry.generic import objects
from hub.registry.generic.definition import WritePath
from hub.registry.kinds import WRITE_PATHS
from hub.registry.managedclusters import service as clusters
from machinery import pki
from machinery.errors import InvalidError
from machinery.identity import AgentId, ClusterName, agent_subject
from machinery.meta import conditions
from machinery.meta.objects import Key, Query, StoredObject

PORTION = 200
"""Largest number of objects per transaction, so that other writers do not wait long."""


@dataclass(frozen=True, slots=True)
class ClusterDeletionProgress:
    """Result of one call of `delete_cluster`. `gone`: the cluster has no content left.

    `moved`: number of objects deleted or marked as deleting. `held`: number of objects that wait for finalizers. `orphaned`:
    objects deleted despite finalizers. `overdue`: this is the first call after the deadline.
    """

    gone: bool = False
    moved: int = 0
    held: int = 0
    overdue: bool = False
    orphaned: tuple[str, ...] = ()


def delete_cluster(
    tx: Transaction, name: str, deadline: timedelta, actor: str, *, trusts_clock: bool = True
) -> ClusterDeletionProgress:
    """Delete the next objects of a cluster that is being deleted, and return the progress. Idempotent.

    Add-ons are deleted by priority, the lowest number first, then all other objects. After `deadline`, this order is ignored,
    but the deadline passes only at a step with `trusts_clock`.
    """
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    if stored is None or not doc.is_deleting(stored.document):
        return ClusterDeletionProgress(gone=stored is None)
    if removal.is_forced(stored.document):
        return _give_up(tx, stored, actor)
    known = conditions.find(doc.conditions(stored.document), removal.DELETING)
    before = known is not None and known.reason == removal.OVERDUE
    overdue = removal.is_overdue(stored.document, deadline, tx.now) and (before or trusts_clock)
    if overdue:
        certificates.revoke_cluster(tx, ClusterName(name), CLUSTER_DELETED)
    if removal.is_emptied(stored.document):
        if overdue and not before:
            clusters.set_condition(tx, ClusterName(name), removal.overdue_condition(stored.document), actor)
        return ClusterDeletionProgress(held=1, overdue=overdue and not before)
    moved = _remove_next(tx, name, actor, at_once=overdue)
    left = Remaining.of([(kind, each.document) for kind, each in clusters.content_of(tx, name)])
    if not left.objects:
        certificates.revoke_cluster(tx, ClusterName(name), CLUSTER_DELETED)
        others = [each for each in doc.finalizers(stored.document) if each != removal.FINALIZER]
        new = doc.with_status_condition(stored.document, removal.GONE, tx.now)
        clusters.put(tx, doc.with_metadata(new, finalizers=others or None), stored, actor, writer=HUB_WRITER)
        return ClusterDeletionProgress(gone=True, moved=moved)
    condition = removal.progress_condition(name, left, deadline, overdue=overdue)
    clusters.set_condition(tx, ClusterName(name), condition, actor)
    return ClusterDeletionProgress(moved=moved, held=left.held, overdue=overdue and not before)


def _remove_next(tx: Transaction, name: str, actor: str, *, at_once: bool) -> int:
    """Delete or mark the next objects. Returns the number of objects."""
    found = list(clusters.content_of(tx, name))
    addons = [stored for kind, stored in found if kind == ADDONS]
    first = min((removal.priority(stored.document) for stored in addons), default=0)
    due = [(ADDONS, stored) for stored in addons if at_once or removal.priority(stored.document) == first]
    if at_once or not addons:
        due += [(kind, stored) for kind, stored in found if kind != ADDONS]
    unmarked = [(kind, stored) for kind, stored in due if not doc.is_deleting(stored.document)][:PORTION]
    for kind, stored in unmarked:
        WRITE_PATHS[kind].remove(tx, stored, Requester(actor))
    return len(unmarked)


def _give_up(tx: Transaction, cluster: StoredObject, actor: str) -> ClusterDeletionProgress:
    """Delete all remaining objects now, despite finalizers."""
    orphaned = []
    found = list(clusters.content_of(tx, cluster.key.name))
    for kind, stored in found:
        held = doc.finalizers(stored.document)
        if held:
            orphaned.append(f"{kind.partition('.')[0]}/{stored.key.name} ({', '.join(map(str, held))})")
        path, who = WRITE_PATHS[kind], Requester(actor)
        if not doc.is_deleting(stored.document):
            path.remove(tx, stored, who)
        if (marked := tx.objects.get(kind, stored.key)) is not None:
            path.put(tx, doc.with_metadata(marked.document, finalizers=None), marked, who)
    others = [str(name) for name in doc.finalizers(cluster.document) if name != removal.FINALIZER]
    orphaned += [f"the cluster itself ({name})" for name in others]
    clusters.put(tx, doc.with_metadata(cluster.document, finalizers=None), cluster, actor, writer=HUB_WRITER)
    return ClusterDeletionProgress(gone=True, moved=len(found), orphaned=tuple(orphaned))


@dataclass(frozen=True, slots=True)
class NamespaceDeletionProgress:
    """Numbers of objects after one `delete_namespace`. `removed`: deleted or marked; `held`: waiting for their finalizers."""

    removed: int = 0
    held: int = 0


def delete_namespace(tx: Transaction, name: str, actor: str) -> NamespaceDeletionProgress:
    """Delete the next PORTION objects of a namespace that is being deleted. Idempotent. Does nothing before its deletion."""
    stored = namespaces.get(tx, name)
    if stored is None or not doc.is_deleting(stored.document):
        return NamespaceDeletionProgress()
    unmarked = ((path, each) for path, each in _namespace_content(tx, name) if not doc.is_deleting(each.document))
    if portion := list(islice(unmarked, PORTION)):
        for path, each in portion:
            path.remove(tx, each, Requester(actor))
        return NamespaceDeletionProgress(removed=len(portion))
    held, finalizers = Counter[Kind](), Counter[str]()
    for path, each in _namespace_content(tx, name):
        held[path.kind] += 1
        finalizers.update(map(str, doc.finalizers(each.document)))
    document = stored.document
    for condition in namespace_rules.remaining(held, finalizers):
        document = doc.with_status_condition(document, condition, tx.now)
    if not held:
        document = namespace_rules.emptied(document)
    if doc.differs(document, stored.document):
        namespaces.put(tx, dict(document), stored, actor, writer=HUB_WRITER)
    return NamespaceDeletionProgress(held=sum(held.values()))


def _namespace_content(tx: Transaction, name: str) -> Iterator[tuple[WritePath, StoredObject]]:
    for path in WRITE_PATHS.values():
        if path.namespaced:
            yield from ((path, stored) for stored in objects.each(tx, path.kind, Query(namespace=name)))


ENDED = (CLUSTER_LEFT, CLUSTER_DELETED)
"""Revocation reasons of the certificates of a cluster that has left or was deleted."""
UNDECIDED = (RequestPhase.PENDING, RequestPhase.APPROVED)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Result of `withdraw`. `known`: a request or a cluster existed. `cluster_stays`: only operators can delete the cluster."""

    known: bool
    cluster_stays: bool


def leave(tx: Transaction, cluster: ClusterName, cluster_uid: str, actor: str) -> bool:
    """Delete the ManagedCluster and revoke its certificates now. Its bootstrap credentials stay valid.

    Returns False if the cluster did not exist or was already being deleted. `delete_cluster` removes the content later. Raises
    AlreadyExistsError if another cluster has the name.
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
    """Withdraw a join: delete pending and approved requests of the credential `requester` for `agent`, and maybe the cluster.

    The cluster is deleted if this bootstrap credential admitted the cluster, the uid matches, the cluster was never accepted,
    and no agent has a certificate.
    """
    found = request_objects.of_cluster(tx, cluster)
    own = [stored for stored in found if _is_undecided(stored, agent, cluster, requester.user)]
    for stored in own:
        request_objects.remove(tx, stored, requester.user)
    stored_cluster = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    admitted = requester.credential is not None and tx.credentials.has_admitted(requester.credential, cluster)
    if stored_cluster is None or not admitted or not cluster_rules.is_same_cluster(stored_cluster.document, cluster_uid):
        return Withdrawn(bool(own), cluster_stays=False)
    document = stored_cluster.document
    if cluster_rules.is_accepted(document) or cluster_rules.was_ever_accepted(document) or certificates.has_agent(tx, cluster):
        return Withdrawn(known=True, cluster_stays=True)
    clusters.remove(tx, stored_cluster, requester.user)
    return Withdrawn(known=True, cluster_stays=False)


def _is_undecided(stored: StoredObject, agent: AgentId, cluster: ClusterName, user: str) -> bool:
    """Whether this is the user's request for this agent's certificate, and is not issued, denied or failed."""
    document = stored.document
    if doc.mapping(document, "spec").get("username") != user or requests.phase(document) not in UNDECIDED:
        return False
    try:
        return pki.parse_request(requests.pem(document)).subject == agent_subject(cluster, agent)
    except InvalidError:
        return False


def has_left(record: CertificateRecord, cluster: str) -> bool:
    """Whether an agent certificate was revoked because this cluster has left or was deleted."""
    is_agents = record.purpose is Purpose.AGENT and record.cluster == cluster
    return is_agents and record.revoked_at is not None and record.revoked_reason in ENDED
