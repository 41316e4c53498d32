"""What an add-on needs on the hub to identify itself by a token: a ServiceAccount, and the right of its cluster's agent to it.

Sources: OCM's add-on manager (names, labels, the condition TokenInfrastructureReady and the message from which agents read the
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
"""What an add-on's token infrastructure is made of, in the order in which it is made."""
_RBAC = "rbac.authorization.k8s.io"


def wants_token(addon: Document) -> bool:
    """Whether one of its registrations is by token, and it is not being deleted."""
    registrations = [entry for entry in doc.sequence(addon, "status", "registrations") if isinstance(entry, Mapping)]
    by_token = any(doc.mapping(entry, KUBE_CLIENT).get("driver") == "token" for entry in registrations)
    return by_token and not doc.is_deleting(addon)


def has_condition(addon: Document) -> bool:
    return any(entry.get("type") == READY for entry in doc.conditions(addon))


def owner(document: Document) -> Key | None:
    """The add-on whose infrastructure an object is; None: it is nobody's."""
    labels = doc.labels(document)
    name = labels.get(ADD_ON, "")
    return Key(doc.key(document).namespace, name) if name and labels.get(INFRASTRUCTURE) == "true" else None


def place(kind: Kind, addon: Key) -> Key:
    """Where one part of it is."""
    return Key(addon.namespace, addon.name + _suffix(kind))


def addon_of(kind: Kind, part: Key) -> Key:
    """The add-on whose part would be there."""
    return Key(part.namespace, part.name.removesuffix(_suffix(kind)))


def _suffix(kind: Kind) -> str:
    return "-agent" if kind == SERVICE_ACCOUNTS else "-token-role"


def part(kind: Kind, addon: Key, found: Document | None) -> dict[str, Any]:
    """One part of it as it has to be: what is found, with what is missing or was changed."""
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
    # OCM binds open-cluster-management:<cluster> too, for AWS: a name that others than the hub may give out
    group = cluster_group(ClusterName(addon.namespace))
    return {
        "subjects": [{"kind": "Group", "apiGroup": _RBAC, "name": group}],
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": place(ROLES, addon).name},
    }


def ready(account: Key, uid: str) -> Condition:
    """Agents read the uid from this message."""
    message = f"ServiceAccount {account.namespace}/{account.name} (UID: {uid}) is ready"
    return Condition(READY, TRUE, "TokenInfrastructureReady", message)


def ready_uid(addon: Document) -> str:
    """The uid of the ServiceAccount that is ready for this add-on; empty: none is."""
    said = [entry for entry in doc.conditions(addon) if entry.get("type") == READY and entry.get("status") == TRUE]
    _, _, rest = str(said[0].get("message") or "").partition("(UID: ") if said else ("", "", "")
    return rest.partition(")")[0]


def failed(message: str) -> Condition:
    return Condition(READY, FALSE, "TokenInfrastructureApplyFailed", message)


def without_condition(addon: Document) -> dict[str, Any]:
    """The add-on as one that has no infrastructure."""
    kept = [dict(entry) for entry in doc.conditions(addon) if entry.get("type") != READY]
    return doc.with_status(addon, conditions=kept) if has_condition(addon) else dict(addon)
