"""Token infrastructure of an add-on: a ServiceAccount, and the right of the cluster's agent to its tokens.

Source: OCM's add-on manager (names, labels, the condition TokenInfrastructureReady and its message, from which agents read the
ServiceAccount's uid).
"""

from collections.abc import Mapping
from typing import Any

from hub.api.managedclusteraddons.versions import KUBE_CLIENT
from hub.api.meta import document as doc
from hub.api.meta.change import ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, Document, Key, Kind
from machinery.identity import CLUSTER_LABEL, ClusterName, cluster_group
from machinery.meta.conditions import FALSE, TRUE, Condition

INFRASTRUCTURE = "addon.open-cluster-management.io/token-infrastructure"
ADD_ON = "addon.open-cluster-management.io/name"
READY = "TokenInfrastructureReady"
KINDS = (SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS)
"""Kinds of an add-on's token infrastructure, in order of creation."""
_RBAC = "rbac.authorization.k8s.io"


def wants_token(addon: Document) -> bool:
    """Whether one of its registrations has the driver `token`, and it is not being deleted."""
    registrations = [entry for entry in doc.sequence(addon, "status", "registrations") if isinstance(entry, Mapping)]
    by_token = any(doc.mapping(entry, KUBE_CLIENT).get("driver") == "token" for entry in registrations)
    return by_token and not doc.is_deleting(addon)


def has_condition(addon: Document) -> bool:
    return any(entry.get("type") == READY for entry in doc.conditions(addon))


def owner(document: Document) -> Key | None:
    """The add-on to whose infrastructure an object belongs; None without one."""
    labels = doc.labels(document)
    name = labels.get(ADD_ON, "")
    return Key(doc.key(document).namespace, name) if name and labels.get(INFRASTRUCTURE) == "true" else None


def place(kind: Kind, addon: Key) -> Key:
    """Key of one part."""
    return Key(addon.namespace, addon.name + _suffix(kind))


def addon_of(kind: Kind, part: Key) -> Key:
    """The add-on to which a part with this key belongs."""
    return Key(part.namespace, part.name.removesuffix(_suffix(kind)))


def _suffix(kind: Kind) -> str:
    return "-agent" if kind == SERVICE_ACCOUNTS else "-token-role"


def part(kind: Kind, addon: Key, found: Document | None) -> dict[str, Any]:
    """One part as it should be: the existing object with missing or changed fields corrected."""
    return {**(found or {}), **_typed(kind), "metadata": _metadata(kind, addon, found), **_content(kind, addon)}


def _typed(kind: Kind) -> dict[str, Any]:
    kinds = {SERVICE_ACCOUNTS: ("v1", "ServiceAccount"), ROLES: (f"{_RBAC}/v1", "Role")}
    api_version, name = kinds.get(kind, (f"{_RBAC}/v1", "RoleBinding"))
    return {"apiVersion": api_version, "kind": name}


def _metadata(kind: Kind, addon: Key, found: Document | None) -> dict[str, Any]:
    where = place(kind, addon)
    labels = {INFRASTRUCTURE: "true", ADD_ON: addon.name, CLUSTER_LABEL: addon.namespace}
    before = dict(doc.mapping(found, "metadata")) if found is not None else {}
    kept = doc.labels(found) if found is not None else {}
    return {**before, "name": where.name, "namespace": where.namespace, "labels": {**kept, **labels}}


def _content(kind: Kind, addon: Key) -> dict[str, Any]:
    if kind == SERVICE_ACCOUNTS:
        return {}
    if kind == ROLES:
        account = place(SERVICE_ACCOUNTS, addon).name
        rule = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [account], "verbs": ["create"]}
        return {"rules": [rule]}
    # OCM also binds open-cluster-management:<cluster>, for AWS; not here, since others than the hub may issue that name
    group = cluster_group(ClusterName(addon.namespace))
    return {
        "subjects": [{"kind": "Group", "apiGroup": _RBAC, "name": group}],
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": place(ROLES, addon).name},
    }


def ready(account: Key, uid: str) -> Condition:
    """The condition; agents read the uid from its message."""
    message = f"ServiceAccount {account.namespace}/{account.name} (UID: {uid}) is ready"
    return Condition(READY, TRUE, "TokenInfrastructureReady", message)


def ready_uid(addon: Document) -> str:
    """Uid of the add-on's ready ServiceAccount; empty without one."""
    said = [entry for entry in doc.conditions(addon) if entry.get("type") == READY and entry.get("status") == TRUE]
    _, _, rest = str(said[0].get("message") or "").partition("(UID: ") if said else ("", "", "")
    return rest.partition(")")[0]


def failed(message: str) -> Condition:
    return Condition(READY, FALSE, "TokenInfrastructureApplyFailed", message)


def without_condition(addon: Document) -> dict[str, Any]:
    """A copy without the condition."""
    kept = [dict(entry) for entry in doc.conditions(addon) if entry.get("type") != READY]
    return doc.with_status(addon, conditions=kept) if has_condition(addon) else dict(addon)
