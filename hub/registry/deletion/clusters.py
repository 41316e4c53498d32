"""Stepwise deletion of a cluster: add-ons by priority, then other content, requests, and the cluster."""

from dataclasses import dataclass
from datetime import timedelta

from hub.api.certificatesigningrequests.request import Requester
from hub.api.managedclusters import removal as rules
from hub.api.managedclusters.removal import Remaining
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, Key, StoredObject
from hub.api.objects.managed_fields import HUB_WRITER
from hub.api.revocations import CLUSTER_DELETED
from hub.ports import Transaction
from hub.registry.certificates import service as certificates
from hub.registry.kinds import WRITE_PATHS
from hub.registry.managedclusters import content
from hub.registry.managedclusters import service as clusters
from machinery.identity import ClusterName

PORTION = 200
"""Objects per transaction, so that other writers do not wait long."""


@dataclass(frozen=True, slots=True)
class ClusterDeletionProgress:
    """Result of one step.

    `moved`: objects deleted or marked; `orphaned`: objects given up; `overdue`: the deadline passed in this step.
    """

    gone: bool = False
    moved: int = 0
    held: int = 0
    overdue: bool = False
    orphaned: tuple[str, ...] = ()


def proceed(tx: Transaction, name: str, deadline: timedelta, actor: str) -> ClusterDeletionProgress:
    """Take one step of the deletion; idempotent. Add-ons of the lowest priority go first, and the step waits for them."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    if stored is None or not rules.needs_steps(stored.document):
        return ClusterDeletionProgress(gone=stored is None)
    if rules.is_forced(stored.document):
        return _give_up(tx, stored, actor)
    overdue = rules.is_overdue(stored.document, deadline, tx.now)
    if overdue:
        _revoke(tx, name)
    before = rules.OVERDUE in {entry.get("reason") for entry in doc.conditions(stored.document)}
    if rules.is_emptied(stored.document):
        if overdue and not before:
            clusters.set_condition(tx, ClusterName(name), rules.waiting_for_others(stored.document), actor)
        return ClusterDeletionProgress(held=1, overdue=overdue and not before)
    moved = _remove_next(tx, name, actor, at_once=overdue)
    left = Remaining.of([(each.kind, each.document) for each in content.of_cluster(tx, name)])
    if not left.objects:
        _let_go(tx, stored, actor)
        return ClusterDeletionProgress(gone=True, moved=moved)
    told = rules.progress(name, left, deadline, overdue=overdue)
    clusters.set_condition(tx, ClusterName(name), told, actor)
    return ClusterDeletionProgress(moved=moved, held=left.held, overdue=overdue and not before)


def _remove_next(tx: Transaction, name: str, actor: str, *, at_once: bool) -> int:
    """Delete or mark the next objects; return their number."""
    found = list(content.of_cluster(tx, name))
    addons = [stored for stored in found if stored.kind == ADDONS]
    first = min((rules.priority(stored.document) for stored in addons), default=0)
    due = [stored for stored in addons if at_once or rules.priority(stored.document) == first]
    if at_once or not addons:
        due += [stored for stored in found if stored.kind != ADDONS]
    unmarked = [stored for stored in due if not doc.is_deleting(stored.document)][:PORTION]
    for stored in unmarked:
        WRITE_PATHS[stored.kind].remove(tx, stored, Requester(actor))
    return len(unmarked)


def _let_go(tx: Transaction, cluster: StoredObject, actor: str) -> None:
    """Revoke the certificates and remove the hub's own finalizer; without others the cluster is deleted."""
    _revoke(tx, cluster.key.name)
    others = [name for name in doc.finalizers(cluster.document) if name != rules.FINALIZER]
    new = doc.with_status_condition(cluster.document, rules.GONE, tx.now)
    clusters.put(tx, doc.with_metadata(new, finalizers=others or None), cluster, actor, writer=HUB_WRITER)


def _revoke(tx: Transaction, name: str) -> None:
    certificates.revoke_cluster(tx, ClusterName(name), CLUSTER_DELETED)


def _give_up(tx: Transaction, cluster: StoredObject, actor: str) -> ClusterDeletionProgress:
    """Delete everything at once, regardless of finalizers."""
    orphaned = []
    found = list(content.of_cluster(tx, cluster.key.name))
    for stored in found:
        held = doc.finalizers(stored.document)
        if held:
            orphaned.append(f"{stored.kind.partition('.')[0]}/{stored.key.name} ({', '.join(map(str, held))})")
        _remove_whole(tx, stored, actor)
    others = [str(name) for name in doc.finalizers(cluster.document) if name != rules.FINALIZER]
    orphaned += [f"the cluster itself ({name})" for name in others]
    clusters.put(tx, rules.unheld(cluster.document), cluster, actor, writer=HUB_WRITER)
    return ClusterDeletionProgress(gone=True, moved=len(found), orphaned=tuple(orphaned))


def _remove_whole(tx: Transaction, stored: StoredObject, actor: str) -> None:
    path, who = WRITE_PATHS[stored.kind], Requester(actor)
    if not doc.is_deleting(stored.document):
        path.remove(tx, stored, who)
    marked = tx.objects.get(stored.kind, stored.key)
    if marked is not None:
        path.put(tx, rules.unheld(marked.document), marked, who)
