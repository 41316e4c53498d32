"""Namespaces: predefined namespaces, clusters' namespaces, and their termination.

Sources: Kubernetes (`spec.finalizers` keeps a namespace until its content is deleted; some cannot be deleted), OCM's
registration controller (the namespace of an accepted cluster has the cluster's name, also as a label, and outlives the
cluster).
"""

from collections.abc import Mapping
from typing import Any

from hub.api.meta import document as doc
from hub.api.meta.change import Kind
from machinery.identity import CLUSTER_LABEL
from machinery.meta.conditions import FALSE, TRUE, Condition
from machinery.meta.objects import Document

HUB = "open-cluster-management-hub"
"""Namespace of the hub's own objects."""
PERMANENT = ("default", "kube-system", "kube-public")
"""Namespaces that cannot be deleted, as in Kubernetes."""
STANDING = (*PERMANENT, "kube-node-lease", HUB)
"""Namespaces that the hub creates at its start."""
RESERVED = "open-cluster-management"
"""No cluster name may begin with this."""
FINALIZER = "kubernetes"
NAME_LABEL = "kubernetes.io/metadata.name"
CONTENT, FINALIZERS = "NamespaceContentRemaining", "NamespaceFinalizersRemaining"


def namespace(name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {**(labels or {}), NAME_LABEL: name}},
        "spec": {"finalizers": [FINALIZER]},
        "status": {"phase": "Active"},
    }


def of_cluster(name: str) -> dict[str, Any]:
    """Return the Namespace of an accepted cluster."""
    return namespace(name, {CLUSTER_LABEL: name})


def is_of_cluster(document: Document) -> bool:
    """Return whether a Namespace has the cluster label with the Namespace's own name."""
    return doc.labels(document).get(CLUSTER_LABEL) == doc.name(document)


def labelled(document: Document) -> dict[str, Any]:
    """Return a copy of a cluster's Namespace with the label of the cluster."""
    return doc.with_metadata(document, labels={**doc.labels(document), CLUSTER_LABEL: doc.name(document)})


def is_held(document: Document) -> bool:
    """Whether finalizers keep a deleted namespace: the finalizer for its content, or others."""
    return bool(doc.sequence(document, "spec", "finalizers")) or bool(doc.finalizers(document))


def terminating(document: Document) -> dict[str, Any]:
    """Return a copy of `document` in the phase Terminating, which accepts no new content."""
    return doc.with_status(document, phase="Terminating")


def emptied(document: Document) -> dict[str, Any]:
    """Return a copy of `document` without the finalizer `kubernetes`, which keeps a Namespace until its content is deleted."""
    left = [name for name in doc.sequence(document, "spec", "finalizers") if name != FINALIZER]
    return doc.with_spec(document, finalizers=left)


def remaining(held: Mapping[Kind, int], finalizers: Mapping[str, int]) -> tuple[Condition, ...]:
    """Return the conditions with the numbers of objects that keep a namespace. `held`: by kind. `finalizers`: by finalizer."""
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
