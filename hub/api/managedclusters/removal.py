"""Deletion of a cluster: order and deadline of the removal of its content, and the condition Deleting.

Source: OCM's garbage collection (finalizer `…/resource-cleanup`, priorities from 0, which is first, to 100).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hub.api.meta import document as doc
from hub.api.meta.change import Kind
from machinery.durations import format_duration
from machinery.identity import CLUSTER_LABEL
from machinery.meta.conditions import FALSE, TRUE, Condition
from machinery.meta.objects import Document

FINALIZER = "cluster.open-cluster-management.io/resource-cleanup"
PRIORITY = "open-cluster-management.io/cleanup-priority"
LAST = 100
FORCED = "hub.open-cluster-management.io/force-deletion"
"""Annotation: the deletion does not wait for the cluster's content."""
KEEP_CREDENTIALS = "hub.open-cluster-management.io/keep-bootstrap-credentials"
"""Annotation: with the value `true`, the cluster's deletion does not revoke the bootstrap credentials of its name."""
DELETING = "Deleting"
GONE = Condition(DELETING, TRUE, "NoResource", "No cleaned resource in cluster ns.")
OVERDUE = "DeletionOverdue"
_ADDON_LABELS = ("addon.open-cluster-management.io/name", "open-cluster-management.io/addon-name")


def priority(document: Document) -> int:
    """Return the cleanup priority, 0 first; 0 if the annotation is absent or not a number from 0 to 100."""
    text = doc.annotations(document).get(PRIORITY, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(LAST)) and int(text) <= LAST else 0


def is_made_for(document: Document, cluster: str) -> bool:
    """Whether an object in the cluster's namespace was created for the cluster or an add-on, according to its labels."""
    labels = doc.labels(document)
    return labels.get(CLUSTER_LABEL) == cluster or any(label in labels for label in _ADDON_LABELS)


def is_forced(cluster: Document) -> bool:
    return FORCED in doc.annotations(cluster)


def has_credential_retention(cluster: Document) -> bool:
    return doc.annotations(cluster).get(KEEP_CREDENTIALS) == "true"


def is_emptied(cluster: Document) -> bool:
    """Whether a deleted cluster waits only for finalizers that the hub has not set."""
    return FINALIZER not in doc.finalizers(cluster)


def is_overdue(cluster: Document, deadline: timedelta, now: datetime) -> bool:
    """Whether the cluster's deletion has taken longer than the deadline."""
    began = doc.deleted_at(cluster)
    return began is not None and now >= began + deadline


@dataclass(frozen=True, slots=True)
class Remaining:
    """Numbers of remaining objects. `objects`: by kind. `held`: objects with finalizers. `finalizers`: these, by finalizer."""

    objects: Mapping[Kind, int] = field(default_factory=dict)
    finalizers: Mapping[str, int] = field(default_factory=dict)
    held: int = 0

    @classmethod
    def of(cls, found: Sequence[tuple[Kind, Document]]) -> "Remaining":
        held = [document for _, document in found if doc.is_deleting(document) and doc.finalizers(document)]
        finalizers = Counter(str(name) for document in held for name in doc.finalizers(document))
        return cls(Counter(kind for kind, _ in found), finalizers, len(held))


def overdue_condition(cluster: Document) -> Condition:
    """Return the condition Deleting of a cluster without content that still has finalizers after the deadline."""
    names, name = ", ".join(map(str, doc.finalizers(cluster))), doc.name(cluster)
    advice = f"its credentials are revoked; to remove it despite the finalizers: hubctl delete cluster {name} --force"
    return Condition(DELETING, FALSE, OVERDUE, f"The cluster itself waits for finalizers: {names}; {advice}")


def progress_condition(cluster: str, left: Remaining, deadline: timedelta, *, overdue: bool) -> Condition:
    """Return the condition Deleting of a cluster whose content is being removed. `overdue`: the deadline has passed."""
    parts = [f"{kind.partition('.')[0]}: {count} remaining" for kind, count in sorted(left.objects.items())]
    message = "; ".join(parts)
    if left.finalizers:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(left.finalizers.items()))
        message += f"; {left.held} wait for finalizers: {names}"
    if not overdue:
        return Condition(DELETING, FALSE, "ResourceRemaining", f"{message}.")
    passed = f"The deadline of {format_duration(deadline)} has passed, so the hub deletes these objects in any order"
    advice = f"if the cluster is lost: hubctl delete cluster {cluster} --force"
    return Condition(DELETING, FALSE, OVERDUE, f"{message}. {passed}; {advice}")


def with_finalizers(cluster: Document) -> dict[str, Any]:
    """Return a copy of `cluster` with the hub's finalizer, which keeps the cluster until its content is removed."""
    return doc.with_metadata(cluster, finalizers=[*dict.fromkeys((*doc.finalizers(cluster), FINALIZER))])
