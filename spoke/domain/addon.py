"""Add-ons of this cluster as the hub describes them, their availability by their Leases, and the renewal of their tokens.

Rules of OCM: the agent of an add-on renews a Lease with the add-on's name. After five minutes (default) without a renewal the
add-on is unavailable. A token is replaced when a fifth of its lifetime is left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from machinery.identity import AddOnName, CertificateSubject
from machinery.meta.conditions import ADDON_AVAILABLE, FALSE, TRUE, UNKNOWN, Condition
from machinery.meta.timestamps import format_time

GRACE = timedelta(seconds=300)
INFRASTRUCTURE = "TokenInfrastructureReady"
CUSTOMIZED = "Customized"
DEFAULT_NAMESPACE = "open-cluster-management-agent-addon"
RESERVED = ("bootstrap-hub-kubeconfig", "hub-kubeconfig-secret", "external-managed-kubeconfig")
"""Prefixes of the names of secrets of this agent or of OCM's agent. An add-on's secret must have another name."""
CSR, TOKEN = "csr", "token"
KUBE_SIGNER = "kubernetes.io/kube-apiserver-client"


@dataclass(frozen=True, slots=True)
class AddOnToken:
    """A ServiceAccount token and its expiry by the hub's clock."""

    token: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class AddOnRegistration:
    signer_name: str
    user: str
    groups: tuple[str, ...] = ()
    organization_units: tuple[str, ...] = ()
    driver: str = ""
    """How the add-on authenticates at the hub's API: `csr` or `token`; empty: the hub has stored no driver."""

    @property
    def subject(self) -> CertificateSubject:
        return CertificateSubject(self.user, frozenset(self.groups), frozenset(self.organization_units))

    @property
    def for_hub(self) -> bool:
        """Whether the registration is for the hub's own API. Then the secret contains a kubeconfig."""
        return self.signer_name == KUBE_SIGNER


@dataclass(frozen=True, slots=True)
class AddOn:
    name: AddOnName
    install_namespace: str
    hosting_cluster_name: str = ""
    health_check_mode: str = "Lease"
    registrations: tuple[AddOnRegistration, ...] = ()
    deleting: bool = False
    account_uid: str = ""
    """The UID of the add-on's ServiceAccount on the hub; empty if the account is not ready."""

    @property
    def namespace(self) -> str:
        return self.install_namespace or DEFAULT_NAMESPACE

    @property
    def hosted(self) -> bool:
        """Whether the add-on's agent, lease and secrets are in the management cluster."""
        return bool(self.hosting_cluster_name)


def uid_in(message: str) -> str:
    """Return the UID in the message of the condition TokenInfrastructureReady; empty: none.

    The message has the form `ServiceAccount NS/NAME (UID: ...) is ready`.
    """
    _, begun, rest = message.partition("(UID: ")
    uid, ended, _ = rest.partition(")")
    return uid.strip() if begun and ended else ""


def secret_name(addon: AddOnName, registration: AddOnRegistration) -> str:
    """Return the name of the secret for a registration's certificate, as in OCM."""
    if registration.for_hub:
        return f"{addon}-hub-kubeconfig"
    return f"{addon}-{registration.signer_name.replace('/', '-')}-client-cert"


def lease_condition(addon: AddOn, renewed_at: datetime | None, now: datetime, grace: timedelta = GRACE) -> Condition:
    """Return the condition Available. `renewed_at`: the last renewal of the Lease; None: there is no Lease.

    `grace`: if the last renewal is older than this, the add-on is unavailable.
    """
    if renewed_at is None:
        hint = f" Its lease is expected in the hosting cluster {addon.hosting_cluster_name}." if addon.hosted else ""
        message = f"The status of {addon.name} add-on is unknown.{hint}"
        return Condition(ADDON_AVAILABLE, UNKNOWN, "ManagedClusterAddOnLeaseNotFound", message)
    if now < renewed_at + grace:
        return Condition(ADDON_AVAILABLE, TRUE, "ManagedClusterAddOnLeaseUpdated", f"{addon.name} add-on is available.")
    return Condition(ADDON_AVAILABLE, FALSE, "ManagedClusterAddOnLeaseUpdateStopped", f"{addon.name} add-on is not available.")


TOKEN_REFRESHED = "TokenRefreshed"  # noqa: S105 - a condition
TOKEN_REMAINING = 0.2
"""A token is replaced when this share of its lifetime is left."""


def token_due(claims: Mapping[str, Any] | None, account_uid: str) -> datetime | None:
    """Return when a token must be replaced; None: now. `claims`: the claims in the token; None: it is unreadable.

    The result is also None if the token is not for the ServiceAccount `account_uid`, or states no lifetime.
    """
    begin, end = (claims or {}).get("iat"), (claims or {}).get("exp")
    private = (claims or {}).get("kubernetes.io")
    account = private.get("serviceaccount") if isinstance(private, Mapping) else None
    uid = account.get("uid") if isinstance(account, Mapping) else None
    if uid != account_uid or not isinstance(begin, int | float) or not isinstance(end, int | float) or begin >= end:
        return None
    try:
        return datetime.fromtimestamp(end - (end - begin) * TOKEN_REMAINING, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def token_refreshed_condition(end: datetime) -> Condition:
    return Condition(TOKEN_REFRESHED, TRUE, "AddonTokenRefreshed", f"Addon token refreshed, expires at {format_time(end)}")


def token_failed_condition(why: str) -> Condition:
    return Condition(TOKEN_REFRESHED, FALSE, "TokenCreationFailed", f"Failed to create addon token: {why}"[:1024])
