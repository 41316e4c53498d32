"""ClusterProfiles: ManagedClusters in the inventory API of SIG Multicluster, for consumers that do not know this hub.

Sources: multicluster.x-k8s.io/v1alpha1 (KEP-4322), OCM's ClusterProfile controllers. An accepted cluster has a profile in every
namespace with a ManagedClusterSetBinding of one of its sets. The hub copies labels, properties, version and conditions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hub.api import managedclustersets as sets
from hub.api.managed_fields import HUB_WRITER
from hub.api.managedclusters.cluster import is_accepted
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_PROFILES, CLUSTER_SET_BINDINGS, MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.registry import namespaces
from hub.registry.generic import declared, objects
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.managedclustersets import all_sets
from machinery.identity import CLUSTER_LABEL
from machinery.meta import conditions
from machinery.meta.objects import Document, Key, Query, StoredObject
from machinery.meta.selectors import Operator, Requirement

GROUP, VERSION, KIND = "multicluster.x-k8s.io", "v1alpha1", "ClusterProfile"
MANAGED_BY = "x-k8s.io/cluster-manager"
SET = "multicluster.x-k8s.io/clusterset"
MANAGER = "open-cluster-management"
_COPIED = {conditions.AVAILABLE: "ControlPlaneHealthy", conditions.JOINED: "Joined"}
"""Conditions of the cluster that a profile shows, and their types in the profile."""


def is_managed_here(profile: Document) -> bool:
    """Whether this hub manages the profile. Other profiles are not changed."""
    return doc.mapping(profile, "spec", "clusterManager").get("name") == MANAGER


def profile(cluster: Document, namespace: str) -> dict[str, Any]:
    """Return a new ClusterProfile, without the fields that `following` sets from the cluster's current state."""
    name = doc.name(cluster)
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace, "labels": {MANAGED_BY: MANAGER}},
        "spec": {"displayName": name, "clusterManager": {"name": MANAGER}},
    }


def following(profile: Document, cluster: Document) -> dict[str, Any]:
    """Return the profile with the cluster's current state. Equals `profile` if nothing changed."""
    own = {MANAGED_BY: MANAGER, SET: doc.labels(cluster).get(sets.LABEL, ""), CLUSTER_LABEL: doc.name(cluster)}
    labelled = doc.with_metadata(profile, labels={**doc.labels(profile), **own})
    version = str(doc.mapping(cluster, "status", "version").get("kubernetes") or "")
    claims = doc.sequence(cluster, "status", "clusterClaims")
    copied = (conditions.find(doc.conditions(cluster), kind) for kind in _COPIED)
    others = (dict(each) for each in doc.conditions(profile) if each.get("type") not in _COPIED.values())
    return doc.with_status(
        labelled,
        conditions=[*others, *({**each.to_document(), "type": _COPIED[each.type]} for each in copied if each is not None)],
        properties=[{"name": claim.get("name"), "value": claim.get("value")} for claim in claims],
        **({"version": {"kubernetes": version}} if version else {}),
    )


@dataclass(frozen=True, slots=True)
class Exported:
    """Namespaces in which a profile was created (`made`) or removed."""

    made: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def reconcile(tx: Transaction, cluster: str, actor: str) -> Exported:
    """Update all profiles of a cluster to match its sets and their bindings. Profiles of other managers do not change."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    document = stored.document if stored is not None else None
    if document is not None and (not is_accepted(document) or doc.is_deleting(document)):
        document = None  # only accepted clusters have profiles
    wanted = _namespaces(tx, document) if document is not None else frozenset()
    found = _profiles(tx, cluster, wanted)
    left = ((place, each.document) for place, each in found.items() if place not in wanted)
    removed = tuple(place for place, each in left if is_managed_here(each) and not doc.is_deleting(each))
    for namespace in removed:
        objects.remove(tx, CLUSTER_PROFILES, found[namespace], actor, generations=True)
    if document is not None:
        for namespace in sorted(wanted):
            _put(tx, document, Key(namespace, cluster), found.get(namespace), actor)
    return Exported(tuple(sorted(wanted - found.keys())), removed)


def _put(tx: Transaction, cluster: Document, key: Key, found: StoredObject | None, actor: str) -> None:
    if found is not None and (doc.is_deleting(found.document) or not is_managed_here(found.document)):
        return
    new = following(found.document if found else profile(cluster, key.namespace), cluster)
    if found is None or doc.differs(new, found.document):
        objects.put(tx, CLUSTER_PROFILES, new, found, actor, generations=True, writer=HUB_WRITER)


def _namespaces(tx: Transaction, cluster: Document) -> frozenset[str]:
    """Names of the namespaces with a binding of one of the cluster's sets, without namespaces that are being deleted."""
    labels = doc.labels(cluster)
    names = tuple(each.name for each in all_sets(tx) if each.has(labels))
    named = (Requirement("metadata.name", Operator.IN, names),)
    bindings = tx.objects.find(CLUSTER_SET_BINDINGS, Query(fields=named)).items if names else ()
    found = (namespaces.get(tx, namespace) for namespace in {binding.key.namespace for binding in bindings})
    return frozenset(each.key.name for each in found if each is not None and not doc.is_deleting(each.document))


def _profiles(tx: Transaction, cluster: str, wanted: Iterable[str]) -> Mapping[str, StoredObject]:
    """Return by namespace the profiles with the cluster's name that have its label or are in a wanted namespace."""
    labelled = tx.objects.find(CLUSTER_PROFILES, Query(labels=(Requirement(CLUSTER_LABEL, Operator.EQUALS, (cluster,)),)))
    present = (tx.objects.get(CLUSTER_PROFILES, Key(namespace, cluster)) for namespace in wanted)
    found = (*labelled.items, *(each for each in present if each is not None))
    return {stored.key.namespace: stored for stored in found if stored.key.name == cluster}


def affected_clusters(tx: Transaction, namespace: str) -> frozenset[str]:
    """Return the names of the clusters that have a ClusterProfile in this namespace, or may need one."""
    bindings = tx.objects.find(CLUSTER_SET_BINDINGS, Query(namespace=namespace)).items
    names = {sets.bound_set(binding.document) for binding in bindings}
    queries = [query for each in all_sets(tx) if each.name in names and (query := each.query()) is not None]
    members = {found.key.name for query in queries for found in tx.objects.find(MANAGED_CLUSTERS, query).items}
    return frozenset(
        members | {found.key.name for found in tx.objects.find(CLUSTER_PROFILES, Query(namespace=namespace)).items}
    )


CLUSTER_PROFILE = ResourceDefinition(declared(CLUSTER_PROFILES))
