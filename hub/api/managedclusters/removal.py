"""The end of a cluster: what of it goes before it, in which order, until when, and what is said of that.

Source: OCM's garbage collection (`…/resource-cleanup`, priorities from 0, which goes first, to 100) and its condition Deleting.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hub.api.meta import document as doc
from hub.api.meta.change import Document, Kind
from machinery.durations import format_duration
from machinery.identity import CLUSTER_LABEL
from machinery.meta.conditions import FALSE, TRUE, Condition

FINALIZER = "cluster.open-cluster-management.io/resource-cleanup"
PRIORITY = "open-cluster-management.io/cleanup-priority"
LAST = 100
FORCED = "hub.open-cluster-management.io/force-deletion"
"""Annotation: the cluster will never answer, so that nothing of it is waited for."""
DELETING = "Deleting"
GONE = Condition(DELETING, TRUE, "NoResource", "No cleaned resource in cluster ns.")
OVERDUE = "DeletionOverdue"
_ADDON_LABELS = ("addon.open-cluster-management.io/name", "open-cluster-management.io/addon-name")


def priority(document: Document) -> int:
    """0 goes first; what is missing or no number from 0 to 100 counts as 0."""
    text = doc.annotations(document).get(PRIORITY, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(LAST)) and int(text) <= LAST else 0


def is_made_for(document: Document, cluster: str) -> bool:
    """Whether an object in the cluster's namespace was made for the cluster or an add-on, and not put there by somebody."""
    labels = doc.labels(document)
    return labels.get(CLUSTER_LABEL) == cluster or any(label in labels for label in _ADDON_LABELS)


def is_forced(cluster: Document) -> bool:
    return FORCED in doc.annotations(cluster)


def needs_steps(cluster: Document) -> bool:
    """Whether a deleted cluster waits for the hub, or for others whose delay the hub reports."""
    return doc.is_deleting(cluster)


def is_emptied(cluster: Document) -> bool:
    """Whether a deleted cluster waits for others alone: the hub's own finalizer has gone."""
    return FINALIZER not in doc.finalizers(cluster)


def is_overdue(cluster: Document, deadline: timedelta, now: datetime) -> bool:
    """Whether its deletion began longer ago than the deadline."""
    began = doc.deleted_at(cluster)
    return began is not None and now >= began + deadline


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of a cluster: objects by kind, and by finalizer those that wait for one."""

    objects: Mapping[Kind, int] = field(default_factory=dict)
    finalizers: Mapping[str, int] = field(default_factory=dict)
    held: int = 0

    @classmethod
    def of(cls, found: Sequence[tuple[Kind, Document]]) -> "Remaining":
        held = [document for _, document in found if doc.is_deleting(document) and doc.finalizers(document)]
        finalizers = Counter(str(name) for document in held for name in doc.finalizers(document))
        return cls(Counter(kind for kind, _ in found), finalizers, len(held))


def waiting_for_others(cluster: Document) -> Condition:
    """What an emptied cluster says after the deadline."""
    names, name = ", ".join(map(str, doc.finalizers(cluster))), doc.name(cluster)
    advice = f"nothing of it opens anything; if they never go: hubctl delete cluster {name} --force"
    return Condition(DELETING, FALSE, OVERDUE, f"The cluster itself waits for finalizers: {names}; {advice}")


def progress(cluster: str, left: Remaining, deadline: timedelta, *, overdue: bool) -> Condition:
    """What the cluster says of its own end."""
    parts = [f"{kind.partition('.')[0]}: {count} remaining" for kind, count in sorted(left.objects.items())]
    message = "; ".join(parts)
    if left.finalizers:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(left.finalizers.items()))
        message += f"; {left.held} wait for finalizers: {names}"
    if not overdue:
        return Condition(DELETING, FALSE, "ResourceRemaining", f"{message}.")
    passed = f"The deadline of {format_duration(deadline)} has passed, so that their order no longer counts"
    advice = f"if the cluster will never answer: hubctl delete cluster {cluster} --force"
    return Condition(DELETING, FALSE, OVERDUE, f"{message}. {passed}; {advice}")


def held(cluster: Document) -> dict[str, Any]:
    """A copy that does not go before what belongs to it has gone."""
    return doc.with_metadata(cluster, finalizers=[*dict.fromkeys((*doc.finalizers(cluster), FINALIZER))])


def unheld(document: Document) -> dict[str, Any]:
    """A copy that no finalizer holds."""
    return doc.with_metadata(document, finalizers=None)
