"""Use cases about ManagedClusterAddOns: write path, agents' reports, health, labels of the cluster, token infrastructure."""

from collections.abc import Sequence
from typing import Any

from hub.api.managed_fields import AGENT_WRITER, HUB_WRITER
from hub.api.managedclusteraddons import addon as addon_rules, health as addon_discovery
from hub.api.managedclusters.cluster import availability
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, SERVICE_ACCOUNTS
from hub.ports import Transaction, Written
from hub.registry import core as accounts, namespaces
from hub.registry.generic import objects
from hub.registry.managedclusters import service as clusters
from machinery.errors import ConflictError
from machinery.identity import AddOnName, ClusterName
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.objects import Key, Query, StoredObject


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str, *, writer: str = "") -> Written:
    """Create (`old` None) or update. Raises InvalidError and the errors of `Objects.put`.

    `writer`: see `hub.registry.generic.objects.write`.
    """
    return objects.put(tx, ADDONS, addon_rules.admitted(new), old, actor, generations=True, writer=writer)


def find(tx: Transaction, cluster: ClusterName, addon: AddOnName) -> StoredObject:
    """Return the add-on. Raises NotFoundError."""
    return objects.find(tx, ADDONS, Key(cluster, addon))


def report(
    tx: Transaction, cluster: ClusterName, addon: AddOnName, conditions: Sequence[Condition], actor: str, *, driver: str = ""
) -> Written | StoredObject:
    """Store the conditions and the authentication driver ("": unchanged) that the agent reports.

    No write if nothing changes. Raises NotFoundError, InvalidError.
    """
    stored = find(tx, cluster, addon)
    new = addon_rules.with_report(stored.document, conditions, tx.now)
    if driver:
        new = addon_rules.with_driver(new, driver)
    return put(tx, new, stored, actor, writer=AGENT_WRITER) if doc.differs(new, stored.document) else stored


def update_health(tx: Transaction, cluster: ClusterName, actor: str) -> None:
    """Set `Available` of the add-ons to Unknown if the cluster is Unknown, else restore the value. Raises NotFoundError."""
    available = availability(clusters.find(tx, cluster).document)
    for stored in _of_cluster(tx, cluster):
        _put_changed(tx, addon_discovery.in_step(stored.document, available, tx.now), stored, actor)


def update_feature_labels(tx: Transaction, cluster: ClusterName, actor: str) -> None:
    """Update the ManagedCluster's labels to match its add-ons. Raises NotFoundError."""
    stored = clusters.find(tx, cluster)
    found = ((each.key.name, addon_discovery.label_state(each.document)) for each in _of_cluster(tx, cluster))
    states = {name: state for name, state in found if state is not None}
    clusters.put_changed(tx, addon_discovery.with_labels(stored.document, states), stored, actor)


def _of_cluster(tx: Transaction, cluster: ClusterName) -> tuple[StoredObject, ...]:
    return tx.objects.find(ADDONS, Query(namespace=cluster)).items


def update_token(tx: Transaction, key: Key, actor: str) -> Condition | None:
    """Update the token infrastructure of one add-on to match its registrations. Returns the condition if it changed."""
    stored = tx.objects.get(ADDONS, key)
    if stored is None or not addon_rules.wants_token(stored.document):
        _remove_token(tx, key, actor)
        if stored is not None and not doc.is_deleting(stored.document):
            _put_changed(tx, addon_rules.without_token_condition(stored.document), stored, actor)
        return None
    condition = _ensure_token(tx, key, actor)
    new = doc.with_status_condition(stored.document, condition, tx.now)
    return condition if _put_changed(tx, new, stored, actor) else None


def token_account(tx: Transaction, cluster: ClusterName, addon: AddOnName) -> StoredObject:
    """Return the ServiceAccount whose tokens the cluster's agent may request for this add-on.

    Raises NotFoundError (no such add-on), ForbiddenError (the cluster is not accepted) or ConflictError (the add-on uses
    another driver, or its infrastructure is not ready).
    """
    clusters.require_accepted(clusters.find(tx, cluster))
    stored = find(tx, cluster, addon)
    if not addon_rules.wants_token(stored.document):
        raise ConflictError(f'add-on "{addon}" has no registration with the driver token')
    ready = conditions.find(doc.conditions(stored.document), addon_rules.INFRASTRUCTURE_READY)
    found = tx.objects.get(SERVICE_ACCOUNTS, addon_rules.token_part_key(SERVICE_ACCOUNTS, stored.key))
    if found is None or doc.is_deleting(found.document) or ready is None or ready.status != conditions.TRUE:
        why = f": {ready.message}" if ready is not None and ready.status != conditions.TRUE else ""
        raise ConflictError(f'the ServiceAccount of add-on "{addon}" is not ready yet{why}')
    return found


def _ensure_token(tx: Transaction, key: Key, actor: str) -> Condition:
    """Create missing parts of the token infrastructure and repair changed parts. Returns the condition of the add-on."""
    home = namespaces.get(tx, key.namespace)
    if home is None or doc.is_deleting(home.document):
        return addon_rules.token_failed(f'namespace "{key.namespace}" is missing or being deleted')
    parts = [(kind, tx.objects.get(kind, addon_rules.token_part_key(kind, key))) for kind in addon_rules.TOKEN_KINDS]
    for kind, found in parts:
        if found is not None and addon_rules.token_owner(found.document) != key:
            what = f"{kind.partition('.')[0]} {found.key}"
            return addon_rules.token_failed(f"{what} exists and is not of this add-on: delete it, or label it as the add-on's")
    for kind, found in parts:
        new = addon_rules.token_part(kind, key, found.document if found else None)
        if found is None or doc.differs(new, found.document):
            objects.put(tx, kind, new, found, actor, writer=HUB_WRITER)
    account = tx.objects.get(SERVICE_ACCOUNTS, addon_rules.token_part_key(SERVICE_ACCOUNTS, key))
    if account is None or doc.is_deleting(account.document):
        return addon_rules.token_failed("the ServiceAccount is being deleted")
    return addon_rules.token_ready(account.key, account.uid)


def _remove_token(tx: Transaction, key: Key, actor: str) -> None:
    """Remove the token infrastructure: first the rights, then the account."""
    for kind in reversed(addon_rules.TOKEN_KINDS):
        found = tx.objects.get(kind, addon_rules.token_part_key(kind, key))
        if found is None or doc.is_deleting(found.document) or addon_rules.token_owner(found.document) != key:
            continue
        if kind == SERVICE_ACCOUNTS:
            accounts.remove_account(tx, found, actor)
        else:
            objects.remove(tx, kind, found, actor)


def _put_changed(tx: Transaction, new: dict[str, object], stored: StoredObject, actor: str) -> bool:
    if not doc.differs(new, stored.document):
        return False
    put(tx, dict(new), stored, actor, writer=HUB_WRITER)
    return True
