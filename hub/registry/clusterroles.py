"""Roles and bindings: the kinds' only write path, with aggregation in the same transaction, and the defaults."""

from typing import Any

from hub.api import clusterroles as rules
from hub.api.managed_fields import HUB_WRITER
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, Kind
from hub.ports import Transaction, Written
from hub.registry.generic import objects
from machinery.meta.objects import Document, Key, Query, StoredObject

ACTOR = "system:hub"
"""Writer of the defaults."""


def put_cluster_role(
    tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str, *, writer: str = ""
) -> Written:
    """Create (`old` None) or update, and update all aggregating roles in the same transaction.

    `writer`: see `hub.registry.generic.objects.write`. Raises AlreadyExistsError, ConflictError.
    """
    name = doc.name(new)
    stored = {each.key.name: each for each in tx.objects.find(CLUSTER_ROLES, Query()).items}
    settled = rules.with_aggregation({**{other: each.document for other, each in stored.items()}, name: new})
    written = objects.put(tx, CLUSTER_ROLES, dict(settled.pop(name)), old, actor, writer=writer)
    _put_changed(tx, stored, settled, actor)
    return written


def remove_cluster_role(tx: Transaction, old: StoredObject, actor: str) -> Written:
    """Delete, or mark as deleting while finalizers remain; update all aggregating roles."""
    written = objects.remove(tx, CLUSTER_ROLES, old, actor)
    stored = {each.key.name: each for each in tx.objects.find(CLUSTER_ROLES, Query()).items}
    _put_changed(tx, stored, rules.with_aggregation({name: each.document for name, each in stored.items()}), actor)
    return written


def _put_changed(tx: Transaction, stored: dict[str, StoredObject], settled: dict[str, Document], actor: str) -> None:
    for name, document in settled.items():
        if document.get("rules") != stored[name].document.get("rules"):
            objects.put(tx, CLUSTER_ROLES, dict(document), stored[name], actor, writer=HUB_WRITER)


def reconcile(tx: Transaction, groups: rules.Groups) -> int:
    """Add missing parts of the default roles and bindings, and remove nothing; return the number of writes.

    Objects with the annotation `rbac.authorization.kubernetes.io/autoupdate: "false"` are not changed.
    """
    roles = sum(_reconcile(tx, CLUSTER_ROLES, default) for default in rules.cluster_roles(groups))
    return roles + sum(_reconcile(tx, CLUSTER_ROLE_BINDINGS, default) for default in rules.CLUSTER_ROLE_BINDINGS)


def _reconcile(tx: Transaction, kind: Kind, default: Document) -> bool:
    stored = tx.objects.get(kind, Key("", doc.name(default)))
    wanted = rules.reconciled(default, stored.document if stored is not None else None)
    if wanted is None:
        return False
    if stored is not None and wanted.get("roleRef") != stored.document.get("roleRef"):
        tx.objects.delete(kind, stored, ACTOR)
        stored = None
    if kind == CLUSTER_ROLES:
        put_cluster_role(tx, wanted, stored, ACTOR, writer=HUB_WRITER)
    else:
        objects.put(tx, kind, wanted, stored, ACTOR, writer=HUB_WRITER)
    return True
