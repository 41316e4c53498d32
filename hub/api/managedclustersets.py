"""ManagedClusterSets: membership, conditions of sets and bindings, and the two predefined sets.

Sources: OCM's cluster API v1beta2 (`spec.clusterSelector`, conditions ClusterSetEmpty and Bound), its registration controllers
(reasons and messages; of `default` and `global` only the selector is restored), its webhook (a cluster without a set gets the
set `default`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hub.api.meta import document as doc
from machinery.errors import BadRequestError
from machinery.meta.conditions import FALSE, TRUE, Condition, with_condition
from machinery.meta.objects import Document, Query
from machinery.meta.selectors import LabelSelector, Operator, Requirement, selector_of
from machinery.product import GROUP_SUFFIX

API_VERSION = f"cluster.{GROUP_SUFFIX}/v1beta2"
KIND = "ManagedClusterSet"
LABEL = "cluster.open-cluster-management.io/clusterset"
"""Label of a ManagedCluster: the name of its exclusive set. A cluster is in at most one exclusive set."""
AUTOUPDATE = "cluster.open-cluster-management.io/autoupdate"
"""Annotation of the sets `default` and `global`: with the value "false", the hub does not restore the set's selector."""
CRITICAL = f"alert.{GROUP_SUFFIX}/critical"
"""Label of a ManagedCluster or a set: with the value "true", the cluster, or each cluster of the set, has its own alert."""
EXCLUSIVE, BY_LABELS = "ExclusiveClusterSetLabel", "LabelSelector"
DEFAULT, GLOBAL = "default", "global"
EMPTY, BOUND = "ClusterSetEmpty", "Bound"
_STANDING: Mapping[str, dict[str, Any]] = {
    DEFAULT: {"selectorType": EXCLUSIVE},
    GLOBAL: {"selectorType": BY_LABELS, "labelSelector": {}},
}
STANDING = tuple(_STANDING)
"""Names of the predefined sets. A setting of the hub can disable these sets."""


@dataclass(frozen=True, slots=True)
class ClusterSet:
    """A parsed ManagedClusterSet. `selector`: selects the set's clusters; None: the set contains no clusters."""

    name: str
    selector: LabelSelector | None
    namespaces: tuple[str, ...] = ()

    @property
    def is_exclusive(self) -> bool:
        """Whether the set contains the clusters that have the set's name in the label LABEL."""
        return self.selector == _exclusive(self.name)

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether the set contains a cluster with these labels."""
        return self.selector is not None and self.selector.matches(labels)

    def query(self) -> Query | None:
        """Return the query for the set's clusters; None if the set has no clusters."""
        return None if self.selector is None else Query(labels=self.selector.requirements)


def cluster_set(document: Document) -> ClusterSet | None:
    """Return the ClusterSet of a ManagedClusterSet; None if the set is being deleted."""
    if doc.is_deleting(document):
        return None
    names = (entry.get("name") for entry in doc.sequence(document, "spec", "managedNamespaces") if isinstance(entry, Mapping))
    return ClusterSet(doc.name(document), _selector(document), tuple(str(name) for name in names if name))


def _selector(document: Document) -> LabelSelector | None:
    """A missing labelSelector or an unknown type selects nothing, an empty labelSelector everything."""
    chosen = doc.mapping(document, "spec", "clusterSelector")
    if chosen.get("selectorType", EXCLUSIVE) == EXCLUSIVE:
        return _exclusive(doc.name(document))
    labels = chosen.get("labelSelector")
    if chosen.get("selectorType") != BY_LABELS or not isinstance(labels, Mapping):
        return None
    try:
        return selector_of(labels)
    except BadRequestError:  # validation refuses such a selector; a stored one selects nothing
        return None


def _exclusive(name: str) -> LabelSelector:
    return LabelSelector((Requirement(LABEL, Operator.EQUALS, (name,)),))


def empty_condition(members: int) -> Condition:
    if members:
        return Condition(EMPTY, FALSE, "ClustersSelected", f"{members} ManagedClusters selected")
    return Condition(EMPTY, TRUE, "NoClusterMatched", "No ManagedCluster selected")


def bound_condition(*, exists: bool) -> Condition:
    """Return the condition Bound of a ManagedClusterSetBinding. `exists`: the set that the binding names exists."""
    return Condition(BOUND, TRUE, "ClusterSetBound", "") if exists else Condition(BOUND, FALSE, "ClusterSetNotFound", "")


def bound_set(binding: Document) -> str:
    return str(doc.mapping(binding, "spec").get("clusterSet") or "")


def desired_set(name: str, found: Document | None) -> dict[str, Any] | None:
    """Return the desired set `default` or `global`; None if nothing changes. AUTOUPDATE "false" disables changes."""
    selector = _STANDING[name]
    if found is None:
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": {"clusterSelector": selector}}
    kept = doc.annotations(found).get(AUTOUPDATE) == "false" or doc.is_deleting(found)
    if kept or doc.mapping(found, "spec", "clusterSelector") == selector:
        return None
    return doc.with_spec(found, clusterSelector=selector)


def lacks_set(cluster: Document) -> bool:
    """Whether a ManagedCluster is in no exclusive set, and is not being deleted."""
    return not doc.labels(cluster).get(LABEL) and not doc.is_deleting(cluster)


def in_default(cluster: Document) -> dict[str, Any]:
    """Return the ManagedCluster with the label that puts it into the set `default`."""
    return doc.with_metadata(cluster, labels={**doc.labels(cluster), LABEL: DEFAULT})


def with_namespace_conditions(
    cluster: Document, reported: Mapping[tuple[str, str], Sequence[Condition]], now: datetime
) -> dict[str, Any]:
    """Return a copy of `cluster` with the reported conditions, by set and namespace. Unknown namespaces are ignored."""
    entries = [dict(entry) for entry in doc.sequence(cluster, "status", "managedNamespaces") if isinstance(entry, Mapping)]
    for entry in entries:
        for condition in reported.get((str(entry.get("clusterSet")), str(entry.get("name"))), ()):
            entry["conditions"] = with_condition(entry.get("conditions") or (), condition, now)
    return doc.with_status(cluster, managedNamespaces=entries) if entries else dict(cluster)


def with_managed_namespaces(cluster: Document, sets: Iterable[ClusterSet]) -> dict[str, Any]:
    """Return `cluster` with its sets' namespaces in `status.managedNamespaces`, by set and name. Agents' conditions stay."""
    labels, before = doc.labels(cluster), doc.sequence(cluster, "status", "managedNamespaces")
    known = {(each.get("clusterSet"), each.get("name")): dict(each) for each in before if isinstance(each, Mapping)}
    wanted = sorted({(each.name, name) for each in sets if each.namespaces and each.has(labels) for name in each.namespaces})
    after = [known.get(place) or {"clusterSet": place[0], "name": place[1]} for place in wanted]
    return doc.with_status(cluster, managedNamespaces=after) if after != list(before) else dict(cluster)
