"""ManagedClusterAddOns: certificates that registrations permit, fields that an agent may report, token infrastructure.

The token infrastructure is a ServiceAccount, and the right of the cluster's agent to request its tokens.

Sources: OCM's addon.open-cluster-management.io/v1beta1 (`status.registrations[]`, and their default subjects), its add-on
manager (names, labels, the condition TokenInfrastructureReady and its message, from which agents read the account's uid).
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from hub.api.managedclusteraddons.versions import CUSTOM_SIGNER, KUBE_CLIENT
from hub.api.meta import document as doc
from hub.api.meta.change import ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, Kind
from machinery import identity
from machinery.errors import InvalidError
from machinery.meta.conditions import FALSE, TRUE, Condition, find
from machinery.meta.objects import Document, Key
from machinery.product import GROUP_SUFFIX

API_VERSION = f"addon.{GROUP_SUFFIX}/v1beta1"
KIND = "ManagedClusterAddOn"
MAX_CONDITIONS = 32
TOKEN = "token"  # noqa: S105 - the name of a driver
DRIVERS = ("csr", TOKEN)
SUBJECTS = "hub.open-cluster-management.io/certificate-subjects"
"""Annotation of a ClusterManagementAddOn: additional users, groups and units that the add-on's certificates may contain."""


def registered_subject(addon: Document, cluster: identity.ClusterName, signer_name: str) -> identity.CertificateSubject | None:
    """Return the subject of this add-on's registration with a signer; None without such a registration."""
    name = identity.AddOnName(doc.name(addon))
    for registration in _registrations(addon):
        if registration.get("type") == KUBE_CLIENT and signer_name == identity.SIGNER:
            subject = doc.mapping(registration, "kubeClient", "subject")
            default = identity.addon_subject(cluster, name, name)
            return _subject(subject, default)
        custom = doc.mapping(registration, "customSigner")
        if registration.get("type") == CUSTOM_SIGNER and custom.get("signerName") == signer_name != identity.SIGNER:
            default = identity.CertificateSubject(identity.addon_subject(cluster, name, name).common_name)
            return _subject(doc.mapping(custom, "subject"), default)
    return None


def foreign_names(
    subject: identity.CertificateSubject, cluster: identity.ClusterName, addon: identity.AddOnName, definition: Document | None
) -> list[str]:
    """Return the names of a subject that are neither the add-on's own nor listed in `definition`, its ClusterManagementAddOn.

    An add-on's own names are the names in OCM's default subject, and `system:authenticated`.
    """
    listed = {each.strip() for each in doc.annotations(definition or {}).get(SUBJECTS, "").split(",")}
    group = identity.addon_group(cluster, addon)
    users = [] if subject.common_name.startswith(f"{group}:agent:") else [subject.common_name]
    groups = subject.organizations - {group, f"{identity.ADDONS_PREFIX}{addon}", "system:authenticated"}
    return [name for name in (*users, *sorted(groups), *sorted(subject.units)) if name not in listed]


def leaves_registrations_unchanged(new: Document, old: Document) -> bool:
    """Whether an agent may write `new` over `old`.

    In an existing registration, an agent may change only the driver and, with the driver `token`, the subject. It may add a
    registration of type kubeClient with the add-on's own names, as OCM's agent does for an add-on without registrations. It may
    not remove a registration.
    """
    key = doc.key(old)
    cluster, addon = identity.ClusterName(key.namespace), identity.AddOnName(key.name)
    by_token = {"user": identity.service_account_user(key.namespace, f"{key.name}-agent")}

    def parts(entry: Mapping[str, Any]) -> tuple[Any, Any]:
        client = {name: value for name, value in doc.mapping(entry, "kubeClient").items() if name not in ("driver", "subject")}
        return {**entry, "kubeClient": client}, dict(doc.mapping(entry, "kubeClient", "subject"))

    def is_own(entry: Mapping[str, Any], subject: Mapping[str, Any]) -> bool:
        names = _subject(subject, identity.addon_subject(cluster, addon, addon))
        return entry.get("type") == KUBE_CLIENT and not foreign_names(names, cluster, addon, None)

    before, after = ([parts(_without_empty(entry)) for entry in _registrations(each)] for each in (old, new))
    kept = len(before) <= len(after) and all(
        now == was and (subject in (known, by_token) or (not subject and known == by_token))
        for (now, subject), (was, known) in zip(after, before, strict=False)
    )
    return kept and all(is_own(*added) for added in after[len(before) :])


def alternative_names(addon: identity.AddOnName) -> tuple[str, ...]:
    """Return the DNS names of an add-on's client certificate: one name, as in OCM."""
    return (f"{addon}.addon.{GROUP_SUFFIX}",)


def _registrations(addon: Document) -> Iterator[Mapping[str, Any]]:
    return (entry for entry in doc.sequence(addon, "status", "registrations") if isinstance(entry, Mapping))


def _without_empty(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without empty values: OCM's agent writes an absent user as an empty one."""
    filled = {name: _without_empty(value) if isinstance(value, Mapping) else value for name, value in entry.items()}
    return {name: value for name, value in filled.items() if value}


def _subject(registered: Mapping[str, Any], default: identity.CertificateSubject) -> identity.CertificateSubject:
    return identity.CertificateSubject(
        common_name=str(registered.get("user") or default.common_name),
        organizations=frozenset(map(str, registered.get("groups") or default.organizations)),
        units=frozenset(map(str, registered.get("organizationUnits") or ())),
    )


def admitted(new: Document) -> dict[str, Any]:
    """Return `new` in stored form. Raises InvalidError."""
    identity.cluster_name(doc.key(new).namespace)
    return {**doc.typed(new, API_VERSION, KIND), "spec": dict(doc.mapping(new, "spec"))}


def with_driver(addon: Document, driver: str) -> dict[str, Any]:
    """Return a copy of `addon` in which all registrations with the hub's API use this driver.

    With the driver `token`, the add-on's ServiceAccount replaces the registered subject. Raises InvalidError.
    """
    if driver not in DRIVERS:
        raise InvalidError(f'the driver of an add-on is one of {", ".join(DRIVERS)}, not "{driver[:80]}"')
    key = doc.key(addon)
    account = identity.service_account_user(key.namespace, f"{key.name}-agent")
    entries = [dict(entry) for entry in _registrations(addon)]
    for entry in entries:
        if entry.get("type") == KUBE_CLIENT:
            client = entry["kubeClient"] = {**doc.mapping(entry, "kubeClient"), "driver": driver}
            if driver == TOKEN:
                client["subject"] = {"user": account}
            elif doc.mapping(client, "subject").get("user") == account:
                del client["subject"]  # the default subject of a certificate applies
    return doc.with_status(addon, registrations=entries) if entries else dict(addon)


def with_report(addon: Document, conditions: Sequence[Condition], now: datetime) -> dict[str, Any]:
    """Return a copy of `addon` with the conditions that the agent reports. Raises InvalidError."""
    if len(conditions) > MAX_CONDITIONS:
        raise InvalidError(f"the report has {len(conditions)} conditions; the limit is {MAX_CONDITIONS}")
    reported = dict(addon)
    for condition in conditions:
        reported = doc.with_status_condition(reported, condition, now)
    return reported


INFRASTRUCTURE = "addon.open-cluster-management.io/token-infrastructure"
ADD_ON = "addon.open-cluster-management.io/name"
INFRASTRUCTURE_READY = "TokenInfrastructureReady"
TOKEN_KINDS = (SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS)
"""Kinds of an add-on's token infrastructure, in order of creation."""
_RBAC = "rbac.authorization.k8s.io"


def wants_token(addon: Document) -> bool:
    """Whether one of the add-on's registrations has the driver `token`, and the add-on is not being deleted."""
    by_token = any(doc.mapping(entry, KUBE_CLIENT).get("driver") == TOKEN for entry in _registrations(addon))
    return by_token and not doc.is_deleting(addon)


def has_token_condition(addon: Document) -> bool:
    return find(doc.conditions(addon), INFRASTRUCTURE_READY) is not None


def token_owner(document: Document) -> Key | None:
    """Return the key of the add-on to whose token infrastructure an object belongs; None if it belongs to none."""
    labels = doc.labels(document)
    name = labels.get(ADD_ON, "")
    return Key(doc.key(document).namespace, name) if name and labels.get(INFRASTRUCTURE) == "true" else None


def token_part_key(kind: Kind, addon: Key) -> Key:
    return Key(addon.namespace, addon.name + _suffix(kind))


def addon_of_token_part(kind: Kind, part: Key) -> Key:
    """Return the key of the add-on to whose token infrastructure the object with the key `part` belongs."""
    return Key(part.namespace, part.name.removesuffix(_suffix(kind)))


def _suffix(kind: Kind) -> str:
    return "-agent" if kind == SERVICE_ACCOUNTS else "-token-role"


def token_part(kind: Kind, addon: Key, found: Document | None) -> dict[str, Any]:
    """Return the desired state of one object of the token infrastructure: `found` with missing or changed fields corrected."""
    where = token_part_key(kind, addon)
    labels = {INFRASTRUCTURE: "true", ADD_ON: addon.name, identity.CLUSTER_LABEL: addon.namespace}
    document = doc.with_metadata(
        found or {}, name=where.name, namespace=where.namespace, labels={**doc.labels(found or {}), **labels}
    )
    if kind == SERVICE_ACCOUNTS:
        return {**document, "apiVersion": "v1", "kind": "ServiceAccount"}
    if kind == ROLES:
        account = token_part_key(SERVICE_ACCOUNTS, addon).name
        rule = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [account], "verbs": ["create"]}
        return {**document, "apiVersion": f"{_RBAC}/v1", "kind": "Role", "rules": [rule]}
    # OCM also binds open-cluster-management:<cluster>, for AWS. The hub does not: another issuer might use that name
    subject = {"kind": "Group", "apiGroup": _RBAC, "name": identity.cluster_group(identity.ClusterName(addon.namespace))}
    role = {"apiGroup": _RBAC, "kind": "Role", "name": token_part_key(ROLES, addon).name}
    return {**document, "apiVersion": f"{_RBAC}/v1", "kind": "RoleBinding", "subjects": [subject], "roleRef": role}


def token_ready(account: Key, uid: str) -> Condition:
    """Return the condition TokenInfrastructureReady; agents read the uid from its message."""
    message = f"ServiceAccount {account.namespace}/{account.name} (UID: {uid}) is ready"
    return Condition(INFRASTRUCTURE_READY, TRUE, "TokenInfrastructureReady", message)


def ready_uid(addon: Document) -> str:
    """Return the uid of the add-on's ready ServiceAccount; "" if there is none."""
    found = find(doc.conditions(addon), INFRASTRUCTURE_READY)
    message = found.message if found is not None and found.status == TRUE else ""
    return message.partition("(UID: ")[2].partition(")")[0]


def token_failed(message: str) -> Condition:
    return Condition(INFRASTRUCTURE_READY, FALSE, "TokenInfrastructureApplyFailed", message)


def without_token_condition(addon: Document) -> dict[str, Any]:
    kept = [dict(entry) for entry in doc.conditions(addon) if entry.get("type") != INFRASTRUCTURE_READY]
    return doc.with_status(addon, conditions=kept) if has_token_condition(addon) else dict(addon)
