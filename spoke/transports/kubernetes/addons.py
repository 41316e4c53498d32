"""Add-ons and their tokens in the Kubernetes API; pure functions."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from machinery.client.rest import Object, RestResource
from machinery.errors import InvalidError
from machinery.identity import AddOnName, ClusterName, addon_subject, service_account_user
from machinery.meta.conditions import TRUE, Condition, find
from machinery.meta.timestamps import parse_time
from spoke.domain.addon import CSR, INFRASTRUCTURE, KUBE_SIGNER, TOKEN, AddOn, AddOnRegistration, AddOnToken, uid_in
from spoke.transports.kubernetes.documents import changed_conditions, entries, patch_of, section

SERVICE_ACCOUNTS = RestResource("", "v1", "serviceaccounts")
HOSTING_CLUSTER = "addon.open-cluster-management.io/hosting-cluster-name"
INSTALL_NAMESPACE = "addon.open-cluster-management.io/v1alpha1-install-namespace"
KUBE_CLIENT = ("kubeClient", "KubeClient")
CUSTOM_SIGNER = ("customSigner", "CustomSigner")


def add_on_of(document: Object) -> AddOn:
    """Parse a ManagedClusterAddOn of the API version v1beta1 or v1alpha1. OCM's defaults replace missing subjects."""
    metadata, status = section(document, "metadata"), section(document, "status")
    notes, name = section(metadata, "annotations"), AddOnName(str(metadata.get("name") or ""))
    cluster = ClusterName(str(metadata.get("namespace") or ""))
    namespaces = (status.get("namespace"), section(document, "spec").get("installNamespace"), notes.get(INSTALL_NAMESPACE))
    registrations = (_registration(entry, cluster, name) for entry in entries(status, "registrations"))
    ready = find(entries(status, "conditions"), INFRASTRUCTURE)
    return AddOn(
        name=name,
        install_namespace=next((str(each) for each in namespaces if each), ""),
        hosting_cluster_name=str(notes.get(HOSTING_CLUSTER) or ""),
        health_check_mode=str(section(status, "healthCheck").get("mode") or "Lease"),
        registrations=tuple(each for each in registrations if each is not None),
        deleting="deletionTimestamp" in metadata,
        account_uid=uid_in(ready.message) if ready is not None and ready.status == TRUE else "",
    )


def _registration(entry: Mapping[str, Any], cluster: ClusterName, addon: AddOnName) -> AddOnRegistration | None:
    """Parse one registration; None if it has another type or no signer."""
    driver = ""
    if entry.get("type") in KUBE_CLIENT:
        registration = section(entry, "kubeClient")
        signer, driver = KUBE_SIGNER, str(registration.get("driver") or "")
    elif entry.get("type") in CUSTOM_SIGNER:
        registration = section(entry, "customSigner")
        signer = str(registration.get("signerName") or "")
    else:
        registration, signer = entry, str(entry.get("signerName") or "")
        driver = CSR if signer == KUBE_SIGNER else ""
    if not signer:
        return None
    subject, default = section(registration, "subject"), addon_subject(cluster, addon, addon)
    groups = subject.get("groups") or (sorted(default.organizations) if signer == KUBE_SIGNER else ())
    units = subject.get("organizationUnits") or subject.get("organizationUnit") or ()
    return AddOnRegistration(
        signer_name=signer,
        user=str(subject.get("user") or default.common_name),
        groups=tuple(str(group) for group in groups),
        organization_units=tuple(str(unit) for unit in units),
        driver=driver,
    )


def report_patch(present: Object, conditions: Iterable[Condition], driver: str, now: datetime) -> Object:
    """Return the merge patch that sets conditions of an add-on and records the driver; empty if nothing changes."""
    status = section(present, "status")
    changes = changed_conditions(status, conditions, now)
    registrations = entries(status, "registrations")
    metadata = present["metadata"]
    account = service_account_user(str(metadata.get("namespace") or ""), f"{metadata.get('name')}-agent")
    noted = [_with_driver(entry, driver, account) for entry in registrations]
    if driver and noted != registrations:
        changes["registrations"] = noted
    return patch_of(present, changes)


def _with_driver(entry: Mapping[str, Any], driver: str, account: str) -> Object:
    """Return the registration with the driver. With `token`, its subject is the ServiceAccount, not the requested subject."""
    if entry.get("type") not in KUBE_CLIENT:
        return dict(entry)
    registration: Object = {**section(entry, "kubeClient"), "driver": driver}
    if driver == TOKEN:
        registration["subject"] = {"user": account}
    elif section(registration, "subject").get("user") == account:
        del registration["subject"]  # so that the default subject for certificates applies
    return {**entry, "kubeClient": registration}


def token_request(duration: timedelta) -> Object:
    spec = {"expirationSeconds": round(duration.total_seconds())}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}


def token_of(answer: Object) -> AddOnToken:
    """Return the token in the answer. Raises InvalidError if there is none."""
    status = section(answer, "status")
    if not status.get("token"):
        raise InvalidError("the hub answered a TokenRequest without a token")
    return AddOnToken(str(status["token"]), parse_time(str(status.get("expirationTimestamp") or "")))
