"""Use cases about ClusterRoles: the only write path, with aggregation in the same transaction, and the default roles."""

from pathlib import Path
from typing import Any

from hub.api import clusterroles as role_rules
from hub.api.managed_fields import HUB_WRITER
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES
from hub.ports import Transaction, Written
from hub.registry.generic import objects
from machinery.meta import bounded_yaml
from machinery.meta.objects import Document, Key, Query, StoredObject

ACTOR = "system:hub"
"""Writer of the default roles."""
DEFAULTS = bounded_yaml.load_all(Path(__file__).with_suffix(".yaml").read_bytes())


def put_cluster_role(
    tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str, *, writer: str = ""
) -> Written:
    """Create a ClusterRole (`old` None) or update it. Also update all aggregating ClusterRoles in the same transaction.

    `writer`: see `hub.registry.generic.objects.write`. Raises AlreadyExistsError, ConflictError.
    """
    others = [each.document for each in tx.objects.find(CLUSTER_ROLES, Query()).items if each.key.name != doc.name(new)]
    known = role_rules.with_aggregation({doc.name(each): each for each in (*others, new)})
    written = objects.put(tx, CLUSTER_ROLES, dict(known[doc.name(new)]), old, actor, writer=writer)
    _aggregate(tx, actor)
    return written


def remove_cluster_role(tx: Transaction, old: StoredObject, actor: str) -> Written:
    """Delete a ClusterRole; while finalizers remain, only set deletionTimestamp. Also update all aggregating ClusterRoles."""
    written = objects.remove(tx, CLUSTER_ROLES, old, actor)
    _aggregate(tx, actor)
    return written


def _aggregate(tx: Transaction, actor: str) -> None:
    stored = {each.key.name: each for each in tx.objects.find(CLUSTER_ROLES, Query()).items}
    for name, role in role_rules.with_aggregation({name: each.document for name, each in stored.items()}).items():
        if role.get("rules") != stored[name].document.get("rules"):
            objects.put(tx, CLUSTER_ROLES, dict(role), stored[name], actor, writer=HUB_WRITER)


def reconcile(tx: Transaction, groups: role_rules.ApiGroups) -> int:
    """Add missing parts of the default roles and bindings. Returns the number of writes.

    Removes nothing, but replaces a binding with another roleRef, because a roleRef is immutable. Objects with the annotation
    `rbac.authorization.kubernetes.io/autoupdate: "false"` are not changed.
    """
    return sum(_reconcile(tx, role_rules.completed(default, groups)) for default in DEFAULTS)


def _reconcile(tx: Transaction, default: Document) -> bool:
    kind = CLUSTER_ROLES if default["kind"] == "ClusterRole" else CLUSTER_ROLE_BINDINGS
    stored = tx.objects.get(kind, Key("", doc.name(default)))
    wanted = role_rules.reconciled(default, stored.document if stored is not None else None)
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
