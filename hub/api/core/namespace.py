"""Namespaces: which there are from the start, which a cluster brings with it, and when one ends.

Sources: Kubernetes (`spec.finalizers` holds a namespace until its content is gone; some are never deleted), OCM's registration
controller (an accepted cluster's namespace bears its name and the label of cluster names; it outlives the ManagedCluster).
"""

from collections.abc import Mapping
from typing import Any

from hub.api.meta import document as doc
from hub.api.meta.change import Document, Kind
from machinery.identity import CLUSTER_LABEL
from machinery.meta.conditions import FALSE, TRUE, Condition

HUB = "open-cluster-management-hub"
"""Where what belongs to the hub itself lies."""
PERMANENT = ("default", "kube-system", "kube-public")
"""May not be deleted, as in Kubernetes."""
STANDING = (*PERMANENT, "kube-node-lease", HUB)
"""Made at every start."""
RESERVED = "open-cluster-management"
"""No cluster has a name that begins so."""
FINALIZER = "kubernetes"
NAME_LABEL = "kubernetes.io/metadata.name"
CONTENT, FINALIZERS = "NamespaceContentRemaining", "NamespaceFinalizersRemaining"


def namespace(name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A new Namespace that holds objects from now on."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {**(labels or {}), NAME_LABEL: name}},
        "spec": {"finalizers": [FINALIZER]},
        "status": {"phase": "Active"},
    }


def of_cluster(name: str) -> dict[str, Any]:
    """The Namespace of an accepted cluster."""
    return namespace(name, {CLUSTER_LABEL: name})


def is_of_cluster(document: Document) -> bool:
    """Whether a Namespace bears the label of the cluster of its name."""
    return doc.labels(document).get(CLUSTER_LABEL) == doc.name(document)


def labelled(document: Document) -> dict[str, Any]:
    """The Namespace of a cluster with the label that says so."""
    return doc.with_metadata(document, labels={**doc.labels(document), CLUSTER_LABEL: doc.name(document)})


def is_held(document: Document) -> bool:
    """Whether a deleted namespace stays: its content, or somebody's finalizer."""
    return bool(doc.sequence(document, "spec", "finalizers")) or bool(doc.finalizers(document))


def terminating(document: Document) -> dict[str, Any]:
    """A copy that takes no new content."""
    return doc.with_status(document, phase="Terminating")


def emptied(document: Document) -> dict[str, Any]:
    """A copy that its content holds no longer."""
    left = [name for name in doc.sequence(document, "spec", "finalizers") if name != FINALIZER]
    return doc.with_spec(document, finalizers=left)


def remaining(held: Mapping[Kind, int], finalizers: Mapping[str, int]) -> tuple[Condition, ...]:
    """What keeps a namespace from going: how many objects of each kind, and how many objects bear each finalizer."""
    if not held:
        return (
            Condition(CONTENT, FALSE, "ContentRemoved", "All content successfully removed"),
            Condition(FINALIZERS, FALSE, "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        )
    resources = ", ".join(f"{kind} has {count} resource instances" for kind, count in sorted(held.items()))
    bearers = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(finalizers.items()))
    waiting = f"Some content in the namespace has finalizers remaining: {bearers}"
    return (
        Condition(CONTENT, TRUE, "SomeResourcesRemain", f"Some resources are remaining: {resources}"),
        Condition(FINALIZERS, TRUE, "SomeFinalizersRemain", waiting),
    )
