"""ClusterProfiles: ManagedClusters in the inventory API of SIG Multicluster, for consumers that do not know this hub.

Sources: multicluster.x-k8s.io/v1alpha1 (KEP-4322), OCM's ClusterProfile controllers: one per cluster in every namespace with a
Bound binding of one of its sets; labels, properties, version and conditions follow the cluster.
"""

from typing import Any

from hub.api.managedclusters.cluster import is_accepted
from hub.api.managedclustersets import LABEL
from hub.api.meta import document as doc
from machinery.identity import CLUSTER_LABEL
from machinery.meta import conditions
from machinery.meta.objects import Document

GROUP, VERSION, KIND = "multicluster.x-k8s.io", "v1alpha1", "ClusterProfile"
MANAGED_BY = "x-k8s.io/cluster-manager"
SET = "multicluster.x-k8s.io/clusterset"
MANAGER = "open-cluster-management"
_COPIED = {conditions.AVAILABLE: "ControlPlaneHealthy", conditions.JOINED: "Joined"}
"""Conditions of the cluster that a profile shows, and their types in the profile."""


def is_exported(cluster: Document) -> bool:
    """Whether the cluster has profiles: it is accepted and not being deleted."""
    return is_accepted(cluster) and not doc.is_deleting(cluster)


def is_managed_here(profile: Document) -> bool:
    """Whether this hub manages the profile; others are not changed."""
    return doc.mapping(profile, "spec", "clusterManager").get("name") == MANAGER


def profile(cluster: Document, namespace: str) -> dict[str, Any]:
    """A new profile, without the fields that follow the cluster."""
    name = doc.name(cluster)
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace, "labels": {MANAGED_BY: MANAGER}},
        "spec": {"displayName": name, "clusterManager": {"name": MANAGER}},
    }


def following(profile: Document, cluster: Document) -> dict[str, Any]:
    """The profile with the cluster's current state; equal if nothing changed."""
    own = {MANAGED_BY: MANAGER, SET: doc.labels(cluster).get(LABEL, ""), CLUSTER_LABEL: doc.name(cluster)}
    labelled = doc.with_metadata(profile, labels={**doc.labels(profile), **own})
    version = str(doc.mapping(cluster, "status", "version").get("kubernetes") or "")
    claims = doc.sequence(cluster, "status", "clusterClaims")
    copied = (conditions.find(doc.conditions(cluster), kind) for kind in _COPIED)
    return doc.with_status(
        labelled,
        conditions=[{**each.to_document(), "type": _COPIED[each.type]} for each in copied if each is not None],
        properties=[{"name": claim.get("name"), "value": claim.get("value")} for claim in claims],
        **({"version": {"kubernetes": version}} if version else {}),
    )
