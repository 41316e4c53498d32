"""A cluster's add-ons and their state, as labels of its ManagedCluster, for label selectors.

Source: OCM's add-on feature discovery controller.
"""

from collections.abc import Mapping
from typing import Any

from hub.api.managedclusters.cluster import availability
from hub.api.meta import document as doc
from hub.api.meta.change import Document
from machinery.meta import conditions
from machinery.meta.conditions import FALSE, TRUE
from machinery.meta.selectors import valid_label_key

PREFIX = "feature.open-cluster-management.io/addon-"
AVAILABLE, UNHEALTHY, UNREACHABLE = "available", "unhealthy", "unreachable"
_STATES = {TRUE: AVAILABLE, FALSE: UNHEALTHY}


def state(addon: Document) -> str | None:
    """Value of the label; None if the add-on is being deleted and has no label."""
    if doc.is_deleting(addon):
        return None
    found = conditions.find(doc.conditions(addon), conditions.ADDON_AVAILABLE)
    return _STATES.get(found.status, UNREACHABLE) if found is not None else UNREACHABLE


def with_labels(cluster: Document, states: Mapping[str, str]) -> dict[str, Any]:
    """The ManagedCluster with the labels of exactly these add-ons.

    A cluster without availability, or that is being deleted, is unchanged. Names that are too long for a label are skipped.
    """
    if doc.is_deleting(cluster) or availability(cluster) is None:
        return dict(cluster)
    before = doc.labels(cluster)
    wanted = {f"{PREFIX}{name}": value for name, value in states.items() if valid_label_key(f"{PREFIX}{name}")}
    labels = {**{name: value for name, value in before.items() if not name.startswith(PREFIX)}, **wanted}
    return dict(cluster) if labels == before else doc.with_metadata(cluster, labels=labels or None)
