"""Use cases about ManagedClusterAddOns: their write path, reports of agents, and their health as the cluster's labels."""

from collections.abc import Sequence
from typing import Any

from hub.api.managedclusteraddons import addon as rules, health as addon_discovery
from hub.api.managedclusters.cluster import availability
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS
from hub.api.objects.managed_fields import AGENT_WRITER, HUB_WRITER
from hub.ports import Transaction, Written
from hub.registry.generic import objects
from hub.registry.managedclusters import service as clusters
from machinery.errors import ErrorSubject, NotFoundError
from machinery.identity import AddOnName, ClusterName
from machinery.meta.conditions import Condition
from machinery.meta.objects import Key, Query, StoredObject
from machinery.product import GROUP_SUFFIX


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str, *, writer: str = "") -> Written:
    """Create (`old` None) or update. Raises InvalidError and the errors of `Objects.put`.

    `writer`: see `hub.registry.generic.objects.store`.
    """
    return objects.put(tx, ADDONS, rules.admitted(new), old, actor, generations=True, writer=writer)


def find(tx: Transaction, cluster: ClusterName, addon: AddOnName) -> StoredObject:
    """Raises NotFoundError."""
    stored = tx.objects.get(ADDONS, Key(cluster, addon))
    if stored is None:
        group = f"addon.{GROUP_SUFFIX}"
        raise NotFoundError(
            f'managedclusteraddons.{group} "{addon}" not found',
            subject=ErrorSubject(name=addon, group=group, kind="managedclusteraddons"),
        )
    return stored


def report(
    tx: Transaction, cluster: ClusterName, addon: AddOnName, conditions: Sequence[Condition], actor: str, *, driver: str = ""
) -> Written | StoredObject:
    """Store the conditions and the authentication driver ("": unchanged) that the agent reports.

    No write if nothing changes. Raises NotFoundError, InvalidError.
    """
    stored = find(tx, cluster, addon)
    new = rules.with_report(stored.document, conditions, tx.now)
    if driver:
        new = rules.with_driver(new, driver)
    return put(tx, new, stored, actor, writer=AGENT_WRITER) if doc.differs(new, stored.document) else stored


def update_health(tx: Transaction, cluster: ClusterName, actor: str) -> None:
    """Update `Available` of every add-on to match the cluster's. Raises NotFoundError."""
    available = availability(clusters.find(tx, cluster).document)
    for stored in _of_cluster(tx, cluster):
        new = addon_discovery.in_step(stored.document, available, tx.now)
        if doc.differs(new, stored.document):
            put(tx, new, stored, actor, writer=HUB_WRITER)


def update_feature_labels(tx: Transaction, cluster: ClusterName, actor: str) -> None:
    """Update the ManagedCluster's labels to match its add-ons. Raises NotFoundError."""
    stored = clusters.find(tx, cluster)
    found = ((each.key.name, addon_discovery.label_state(each.document)) for each in _of_cluster(tx, cluster))
    states = {name: state for name, state in found if state is not None}
    new: dict[str, Any] = addon_discovery.with_labels(stored.document, states)
    if doc.differs(new, stored.document):
        clusters.put(tx, new, stored, actor, writer=HUB_WRITER)


def _of_cluster(tx: Transaction, cluster: ClusterName) -> tuple[StoredObject, ...]:
    return tx.objects.find(ADDONS, Query(namespace=cluster)).items
