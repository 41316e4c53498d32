"""Health of add-ons: their availability while their cluster is silent, and their state as labels of the ManagedCluster.

As in OCM's health check controller, `Available` of every add-on of a silent cluster becomes Unknown, with the cluster's reason
and message. In addition, an annotation keeps the previous condition. When the silence ends, the hub restores this condition,
because an agent whose session survived does not report the condition again. The labels are those of OCM's feature discovery
controller.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from hub.api.managedclusters.cluster import availability
from hub.api.meta import document as doc
from machinery.meta import conditions
from machinery.meta.conditions import ADDON_AVAILABLE, FALSE, TRUE, UNKNOWN, Condition
from machinery.meta.objects import Document
from machinery.meta.selectors import valid_label_key

NOTE = "hub.open-cluster-management.io/silenced"
"""Annotation, as JSON: `reason` of the cluster's silence, and `before`, the condition that was replaced."""


@dataclass(frozen=True, slots=True)
class _Note:
    reason: str
    before: Condition | None


def silence_of(addon: Document) -> str | None:
    """Return the reason of the silence in the add-on's status; "": its agent has reported since; None: no annotation NOTE."""
    note = _note(addon)
    if note is None:
        return None
    return note.reason if _is_of(_available(addon), note) else ""


def reason_of(available: Condition | None) -> str | None:
    """Return the reason of a cluster's condition Available if this condition is Unknown; else None."""
    return available.reason if available is not None and available.status == UNKNOWN else None


def in_step(addon: Document, available: Condition | None, now: datetime) -> dict[str, Any]:
    """Return a copy of `addon` whose condition Available follows the cluster's condition `available`; equal if unchanged."""
    if available is not None and available.status == UNKNOWN:
        return _silenced(addon, available, now)
    return _restored(addon, now)


def _silenced(addon: Document, available: Condition, now: datetime) -> dict[str, Any]:
    found, note = _available(addon), _note(addon)
    before = note.before if note is not None and _is_of(found, note) else found
    wanted = Condition(ADDON_AVAILABLE, available.status, available.reason, available.message)
    undated = replace(before, last_transition_time=None) if before is not None else None
    kept = msgspec.json.encode(_Note(available.reason, undated)).decode()
    return doc.with_status_condition(doc.with_annotations(addon, {NOTE: kept}), wanted, now)


def _restored(addon: Document, now: datetime) -> dict[str, Any]:
    note = _note(addon)
    if note is None:
        return dict(addon)
    freed = doc.with_annotations(addon, {NOTE: None})
    if not _is_of(_available(addon), note):  # the agent has reported since
        return freed
    if note.before is not None:
        return doc.with_status_condition(freed, note.before, now)
    rest = [dict(entry) for entry in doc.conditions(freed) if entry.get("type") != ADDON_AVAILABLE]
    return doc.with_status(freed, conditions=rest)


def _available(addon: Document) -> Condition | None:
    return conditions.find(doc.conditions(addon), ADDON_AVAILABLE)


def _is_of(found: Condition | None, note: _Note) -> bool:
    """Whether the hub has set the current condition because of the silence."""
    return found is not None and (found.status, found.reason) == (UNKNOWN, note.reason)


def _note(addon: Document) -> _Note | None:
    """Read the annotation NOTE; None if it is absent. An unreadable one counts as one without a previous condition."""
    text = doc.annotations(addon).get(NOTE)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=_Note)
    except msgspec.DecodeError:
        found = _available(addon)
        return _Note(found.reason if found else "", None)


FEATURE_PREFIX = "feature.open-cluster-management.io/addon-"
AVAILABLE, UNHEALTHY, UNREACHABLE = "available", "unhealthy", "unreachable"
_STATES = {TRUE: AVAILABLE, FALSE: UNHEALTHY}


def label_state(addon: Document) -> str | None:
    """Return the value of the add-on's label; None, for no label, if the add-on is being deleted."""
    if doc.is_deleting(addon):
        return None
    found = _available(addon)
    return _STATES.get(found.status, UNREACHABLE) if found is not None else UNREACHABLE


def with_labels(cluster: Document, states: Mapping[str, str]) -> dict[str, Any]:
    """Return `cluster` with labels of exactly the add-ons in `states`. Names that are too long for a label are left out.

    A cluster without availability, or one that is being deleted, is unchanged.
    """
    if doc.is_deleting(cluster) or availability(cluster) is None:
        return dict(cluster)
    before = doc.labels(cluster)
    wanted = {f"{FEATURE_PREFIX}{name}": value for name, value in states.items() if valid_label_key(f"{FEATURE_PREFIX}{name}")}
    labels = {**{name: value for name, value in before.items() if not name.startswith(FEATURE_PREFIX)}, **wanted}
    return dict(cluster) if labels == before else doc.with_metadata(cluster, labels=labels or None)
