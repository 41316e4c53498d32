"""Use cases about ManagedClusterSets: conditions, bindings, and the managed namespaces of their clusters."""

from typing import Any

from hub.api import managedclustersets as rules
from hub.api.managedclustersets import ClusterSet
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_SET_BINDINGS, CLUSTER_SETS, MANAGED_CLUSTERS, Key, Kind, Query, StoredObject
from hub.api.objects.managed_fields import HUB_WRITER
from hub.ports import Transaction
from hub.registry import objects
from hub.registry.managedclusters import service as membership
from machinery.identity import ClusterName
from machinery.meta.conditions import Condition
from machinery.meta.selectors import Operator, Requirement


def ensure_standing(tx: Transaction, name: str, actor: str) -> str:
    """Create `default` or `global`, or restore its selector. Returns "created", "restored" or ""."""
    found = tx.objects.get(CLUSTER_SETS, Key("", name))
    wanted = rules.standing(name, found.document if found else None)
    if wanted is None:
        return ""
    objects.put(tx, CLUSTER_SETS, wanted, found, actor, generations=True, writer=HUB_WRITER)
    return "created" if found is None else "restored"


def all_sets(tx: Transaction) -> list[ClusterSet]:
    """All sets that are not being deleted."""
    found = (rules.cluster_set(stored.document) for stored in tx.objects.find(CLUSTER_SETS, Query()).items)
    return [each for each in found if each is not None]


def settle_emptiness(tx: Transaction, name: str, actor: str) -> None:
    """Update the set's condition with the number of its clusters; no write if unchanged."""
    stored = tx.objects.get(CLUSTER_SETS, Key("", name))
    found = rules.cluster_set(stored.document) if stored else None
    if stored is None or found is None:
        return
    query = found.query()
    members = tx.objects.count(MANAGED_CLUSTERS, query) if query else 0
    _set_condition(tx, CLUSTER_SETS, stored, rules.emptiness(members), actor)


def settle_binding(tx: Transaction, key: Key, actor: str) -> None:
    """Update the binding's condition about the existence of its set."""
    stored = tx.objects.get(CLUSTER_SET_BINDINGS, key)
    if stored is not None and not doc.is_deleting(stored.document):
        exists = tx.objects.get(CLUSTER_SETS, Key("", rules.bound_set(stored.document))) is not None
        _set_condition(tx, CLUSTER_SET_BINDINGS, stored, rules.boundness(exists=exists), actor)


def bindings_of(tx: Transaction, name: str) -> list[Key]:
    """Bindings of a set: a binding has the name of its set."""
    named = (Requirement("metadata.name", Operator.EQUALS, (name,)),)
    return [stored.key for stored in tx.objects.find(CLUSTER_SET_BINDINGS, Query(fields=named)).items]


def put_in_default(tx: Transaction, cluster: ClusterName, actor: str) -> None:
    """Put a cluster without an exclusive set into `default`. Raises NotFoundError."""
    stored = membership.find(tx, cluster)
    ensure_standing(tx, rules.DEFAULT, actor)
    _put_cluster(tx, membership.with_default_set(tx, stored.document), stored, actor)


def settle_namespaces(tx: Transaction, cluster: ClusterName, actor: str) -> None:
    """Write the namespaces of the cluster's sets to its `status.managedNamespaces`. Raises NotFoundError."""
    stored = membership.find(tx, cluster)
    if not doc.is_deleting(stored.document):
        _put_cluster(tx, rules.with_managed_namespaces(stored.document, all_sets(tx)), stored, actor)


def _put_cluster(tx: Transaction, new: dict[str, Any], old: StoredObject, actor: str) -> None:
    if doc.differs(new, old.document):
        membership.put(tx, new, old, actor, writer=HUB_WRITER)


def _set_condition(tx: Transaction, kind: Kind, stored: StoredObject, condition: Condition, actor: str) -> None:
    new = doc.with_status_condition(stored.document, condition, tx.now)
    if doc.differs(new, stored.document):
        objects.put(tx, kind, new, stored, actor, generations=True, writer=HUB_WRITER)
