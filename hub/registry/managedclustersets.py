"""ManagedClusterSets and their bindings as OCM serves them: conditions, and the managed namespaces of their clusters.

A cluster is in the set that its label `cluster.open-cluster-management.io/clusterset` names, and in sets whose selector
matches. A ManagedClusterSetBinding permits the use of a set in its namespace.
"""

from collections.abc import Mapping
from dataclasses import replace

from hub.api import managedclustersets as set_rules
from hub.api.managed_fields import HUB_WRITER
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.managedclusters.availability import has_parted
from hub.api.managedclustersets import ClusterSet
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_SET_BINDINGS, CLUSTER_SETS, MANAGED_CLUSTERS, Kind
from hub.ports import Transaction
from hub.registry.generic import declared, objects
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.managedclusters import service as membership
from machinery.errors import Cause, invalid_value
from machinery.identity import ClusterName
from machinery.meta.conditions import Condition
from machinery.meta.objects import Document, Key, Query, StoredObject
from machinery.meta.selectors import Operator, Requirement, valid_label_key, valid_label_value


def ensure_predefined(tx: Transaction, name: str, actor: str) -> str:
    """Create the set `default` or `global`, or restore its selector. Returns "created", "restored" or "" (unchanged)."""
    found = tx.objects.get(CLUSTER_SETS, Key("", name))
    wanted = set_rules.desired_set(name, found.document if found else None)
    if wanted is None:
        return ""
    objects.put(tx, CLUSTER_SETS, wanted, found, actor, generations=True, writer=HUB_WRITER)
    return "created" if found is None else "restored"


def all_sets(tx: Transaction) -> list[ClusterSet]:
    """Return all ManagedClusterSets that are not being deleted."""
    found = (set_rules.cluster_set(stored.document) for stored in tx.objects.find(CLUSTER_SETS, Query()).items)
    return [each for each in found if each is not None]


def critical_clusters(tx: Transaction, at_most: int) -> Mapping[str, str]:
    """Return availability by name of at most `at_most` clusters with the label CRITICAL or in such a set, that use this hub."""
    labelled = (Requirement(set_rules.CRITICAL, Operator.EQUALS, ("true",)),)
    sets = (set_rules.cluster_set(stored.document) for stored in tx.objects.find(CLUSTER_SETS, Query(labels=labelled)).items)
    queries = [Query(labels=labelled), *(query for each in sets if each is not None and (query := each.query()) is not None)]
    found: dict[str, str] = {}
    for query in queries:
        for stored in tx.objects.find(MANAGED_CLUSTERS, replace(query, limit=at_most)).items:
            if not has_parted(available := cluster_rules.availability(stored.document)):
                found[stored.key.name] = available.status if available is not None else ""
    return dict(sorted(found.items())[:at_most])


def update_empty_condition(tx: Transaction, name: str, actor: str) -> None:
    """Update the condition ClusterSetEmpty; no write if it is unchanged."""
    stored = tx.objects.get(CLUSTER_SETS, Key("", name))
    found = set_rules.cluster_set(stored.document) if stored else None
    if stored is not None and found is not None:
        query = found.query()
        members = tx.objects.count(MANAGED_CLUSTERS, query) if query else 0
        _set_condition(tx, CLUSTER_SETS, stored, set_rules.empty_condition(members), actor)


def update_binding(tx: Transaction, key: Key, actor: str) -> None:
    """Update the condition Bound; no write if it is unchanged."""
    stored = tx.objects.get(CLUSTER_SET_BINDINGS, key)
    if stored is not None and not doc.is_deleting(stored.document):
        exists = tx.objects.get(CLUSTER_SETS, Key("", set_rules.bound_set(stored.document))) is not None
        _set_condition(tx, CLUSTER_SET_BINDINGS, stored, set_rules.bound_condition(exists=exists), actor)


def bindings_of(tx: Transaction, name: str) -> list[Key]:
    """Return the keys of the ManagedClusterSetBindings of the set `name`. A binding has the name of its set."""
    named = (Requirement("metadata.name", Operator.EQUALS, (name,)),)
    return [stored.key for stored in tx.objects.find(CLUSTER_SET_BINDINGS, Query(fields=named)).items]


def put_in_default(tx: Transaction, cluster: ClusterName, actor: str) -> None:
    """Put a cluster whose label names no set into `default`. Raises NotFoundError."""
    stored = membership.find(tx, cluster)
    ensure_predefined(tx, set_rules.DEFAULT, actor)
    membership.put_changed(tx, membership.with_default_set(tx, stored.document), stored, actor)


def update_managed_namespaces(tx: Transaction, cluster: ClusterName, actor: str) -> None:
    """Write the namespaces of the cluster's sets to its `status.managedNamespaces`. Raises NotFoundError."""
    stored = membership.find(tx, cluster)
    if not doc.is_deleting(stored.document):
        membership.put_changed(tx, set_rules.with_managed_namespaces(stored.document, all_sets(tx)), stored, actor)


def _set_condition(tx: Transaction, kind: Kind, stored: StoredObject, condition: Condition, actor: str) -> None:
    new = doc.with_status_condition(stored.document, condition, tx.now)
    if doc.differs(new, stored.document):
        objects.put(tx, kind, new, stored, actor, generations=True, writer=HUB_WRITER)


def _set_violations(new: Document, _old: Document | None) -> list[Cause]:
    """Checks the rules of a label selector that a schema cannot express."""
    path = "spec.clusterSelector.labelSelector"
    selector = doc.mapping(new, "spec", "clusterSelector", "labelSelector")
    causes = [
        invalid_value(f"{path}.matchLabels", f"{key}={value}", "is not a valid label")
        for key, value in doc.mapping(selector, "matchLabels").items()
        if not (valid_label_key(key) and valid_label_value(value))
    ]
    for index, expression in enumerate(doc.sequence(selector, "matchExpressions")):
        operator, values = expression.get("operator"), expression.get("values") or []
        at = f"{path}.matchExpressions[{index}]"
        if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            causes.append(invalid_value(f"{at}.operator", operator, "not a valid selector operator"))
        elif (operator in ("In", "NotIn")) != bool(values):
            why = "must be specified when `operator` is 'In' or 'NotIn', and not when it is 'Exists' or 'DoesNotExist'"
            causes.append(invalid_value(f"{at}.values", values, why))
    return causes


def _binding_violations(new: Document, _old: Document | None) -> list[Cause]:
    wanted = doc.mapping(new, "spec").get("clusterSet")
    if wanted == doc.name(new):
        return []
    why = "the ManagedClusterSetBinding must have the same name as the target ManagedClusterSet"
    return [invalid_value("spec.clusterSet", wanted or "", why)]


MANAGED_CLUSTER_SET = ResourceDefinition(declared(CLUSTER_SETS, validate=_set_violations))
MANAGED_CLUSTER_SET_BINDING = ResourceDefinition(declared(CLUSTER_SET_BINDINGS, validate=_binding_violations))
