"""ManagedClusterAddOns: certificates that their registrations permit, and fields that an agent may report.

Source: OCM's addon.open-cluster-management.io/v1beta1 (`status.registrations[]`, and their default subjects).
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from hub.api.managedclusteraddons.versions import CUSTOM_SIGNER, KUBE_CLIENT
from hub.api.meta import document as doc
from hub.api.meta.change import Document
from machinery.errors import InvalidError
from machinery.identity import (
    ADDONS_PREFIX,
    SIGNER,
    AddOnName,
    CertificateSubject,
    ClusterName,
    addon_group,
    addon_subject,
    cluster_name,
    service_account_user,
)
from machinery.meta.conditions import Condition
from machinery.product import GROUP_SUFFIX

API_VERSION = f"addon.{GROUP_SUFFIX}/v1beta1"
KIND = "ManagedClusterAddOn"
MAX_CONDITIONS = 32
TOKEN = "token"  # noqa: S105 - the name of a way
DRIVERS = ("csr", TOKEN)
SUBJECTS = "hub.open-cluster-management.io/certificate-subjects"
"""Annotation of a ClusterManagementAddOn: additional users, groups and units that its certificates may have."""


def registered_subject(addon: Document, cluster: ClusterName, signer_name: str) -> CertificateSubject | None:
    """The subject of this add-on's registration with a signer; None without such a registration."""
    name = AddOnName(doc.name(addon))
    for registration in _registrations(addon):
        if registration.get("type") == KUBE_CLIENT and signer_name == SIGNER:
            subject = doc.mapping(registration, "kubeClient", "subject")
            default = addon_subject(cluster, name, name)
            return _subject(subject, default)
        custom = doc.mapping(registration, "customSigner")
        if registration.get("type") == CUSTOM_SIGNER and custom.get("signerName") == signer_name != SIGNER:
            default = CertificateSubject(addon_subject(cluster, name, name).common_name)
            return _subject(doc.mapping(custom, "subject"), default)
    return None


def foreign_names(
    subject: CertificateSubject, cluster: ClusterName, addon: AddOnName, definition: Document | None
) -> list[str]:
    """Names of a subject that are neither the add-on's own nor listed in its ClusterManagementAddOn.

    Its own are the users and groups that OCM gives it, and `system:authenticated`.
    """
    listed = {each.strip() for each in doc.annotations(definition or {}).get(SUBJECTS, "").split(",")}
    group = addon_group(cluster, addon)
    users = [] if subject.common_name.startswith(f"{group}:agent:") else [subject.common_name]
    groups = subject.organizations - {group, f"{ADDONS_PREFIX}{addon}", "system:authenticated"}
    return [name for name in (*users, *sorted(groups), *sorted(subject.units)) if name not in listed]


def keeps_registrations(new: Document, old: Document) -> bool:
    """Whether an agent may write this.

    In an existing registration it may change only the driver, and with the driver `token` the subject. It may add a
    registration of type kubeClient with the add-on's own names, as OCM's agent does for an add-on without registrations, and
    remove none.
    """
    key = doc.key(old)
    cluster, addon = ClusterName(key.namespace), AddOnName(key.name)
    by_token = {"user": service_account_user(key.namespace, f"{key.name}-agent")}

    def parts(entry: Mapping[str, Any]) -> tuple[Any, Any]:
        client = {name: value for name, value in doc.mapping(entry, "kubeClient").items() if name not in ("driver", "subject")}
        return {**entry, "kubeClient": client}, dict(doc.mapping(entry, "kubeClient", "subject"))

    def is_own(entry: Mapping[str, Any], subject: Mapping[str, Any]) -> bool:
        names = _subject(subject, addon_subject(cluster, addon, addon))
        return entry.get("type") == KUBE_CLIENT and not foreign_names(names, cluster, addon, None)

    before, after = ([parts(entry) for entry in _registrations(each)] for each in (old, new))
    kept = len(before) <= len(after) and all(
        now == was and (subject in (known, by_token) or (not subject and known == by_token))
        for (now, subject), (was, known) in zip(after, before, strict=False)
    )
    return kept and all(is_own(*added) for added in after[len(before) :])


def alternative_names(addon: AddOnName) -> tuple[str, ...]:
    """OCM's DNS name of an add-on's client certificate."""
    return (f"{addon}.addon.{GROUP_SUFFIX}",)


def _registrations(addon: Document) -> Iterator[Mapping[str, Any]]:
    return (entry for entry in doc.sequence(addon, "status", "registrations") if isinstance(entry, Mapping))


def _subject(registered: Mapping[str, Any], default: CertificateSubject) -> CertificateSubject:
    return CertificateSubject(
        common_name=str(registered.get("user") or default.common_name),
        organizations=frozenset(map(str, registered.get("groups") or default.organizations)),
        units=frozenset(map(str, registered.get("organizationUnits") or ())),
    )


def admitted(new: Document) -> dict[str, Any]:
    """Return `new` in stored form. Raises InvalidError."""
    cluster_name(doc.key(new).namespace)
    return {**doc.typed(new, API_VERSION, KIND), "spec": dict(doc.mapping(new, "spec"))}


def with_driver(addon: Document, driver: str) -> dict[str, Any]:
    """A copy in which all registrations with the hub's API use this driver.

    With the driver `token` the subject is the add-on's ServiceAccount, whatever was registered. Raises InvalidError.
    """
    if driver not in DRIVERS:
        raise InvalidError(f'an add-on identifies itself by one of {", ".join(DRIVERS)}, not by "{driver[:80]}"')
    key = doc.key(addon)
    account = service_account_user(key.namespace, f"{key.name}-agent")
    entries = [dict(entry) for entry in _registrations(addon)]
    for entry in entries:
        if entry.get("type") == KUBE_CLIENT:
            told = {**doc.mapping(entry, "kubeClient"), "driver": driver}
            if driver == TOKEN:
                told["subject"] = {"user": account}
            elif doc.mapping(told, "subject").get("user") == account:
                del told["subject"]  # the default subject of a certificate applies
            entry["kubeClient"] = told
    return doc.with_status(addon, registrations=entries) if entries else dict(addon)


def with_report(addon: Document, conditions: Sequence[Condition], now: datetime) -> dict[str, Any]:
    """A copy with the conditions that the agent reports. Raises InvalidError."""
    if len(conditions) > MAX_CONDITIONS:
        raise InvalidError(f"the report has {len(conditions)} conditions; the limit is {MAX_CONDITIONS}")
    reported = dict(addon)
    for condition in conditions:
        reported = doc.with_status_condition(reported, condition, now)
    return reported
