"""Kinds of objects, and entries of the change log."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NewType

import msgspec

from machinery.meta.objects import ChangeType, Document, Key

Kind = NewType("Kind", str)
"""`<resource>.<group>`, as in `leases.coordination.k8s.io`. The hub's groups are without suffix: `managedclusters.cluster`."""

MANAGED_CLUSTERS = Kind("managedclusters.cluster")
ADDONS = Kind("managedclusteraddons.addon")
REQUESTS = Kind("certificatesigningrequests.certificates.k8s.io")
LEASES = Kind("leases.coordination.k8s.io")
CONFIG_MAPS = Kind("configmaps")
SERVICE_ACCOUNTS = Kind("serviceaccounts")
SECRETS = Kind("secrets")
NAMESPACES = Kind("namespaces")
EVENTS = Kind("events")
CLUSTER_ROLES = Kind("clusterroles.rbac.authorization.k8s.io")
CLUSTER_ROLE_BINDINGS = Kind("clusterrolebindings.rbac.authorization.k8s.io")
ROLES = Kind("roles.rbac.authorization.k8s.io")
ROLE_BINDINGS = Kind("rolebindings.rbac.authorization.k8s.io")
ADDON_DEFINITIONS = Kind("clustermanagementaddons.addon")
ADDON_SCORES = Kind("addonplacementscores.cluster")
APPROVAL_RULES = Kind("approvalrules.hub")
REVOCATIONS = Kind("revocations.hub")
CREDENTIAL_ISSUERS = Kind("credentialissuers.hub")
CLUSTER_SETS = Kind("managedclustersets.cluster")
CLUSTER_SET_BINDINGS = Kind("managedclustersetbindings.cluster")
CLUSTER_PROFILES = Kind("clusterprofiles.multicluster.x-k8s.io")
JWT_AUTHENTICATORS = Kind("jwtauthenticators.login")
WEBHOOK_AUTHENTICATORS = Kind("webhookauthenticators.login")
CONSOLE_SESSIONS = Kind("consolesessions.login")

SEALED = frozenset((SECRETS,))
"""Kinds whose documents the store encrypts. Names, labels and selectable fields are not encrypted."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the change log. `encoded`: the document after the change; for a deletion its last state."""

    revision: int
    at: datetime
    actor: str
    kind: Kind
    key: Key
    type: ChangeType
    encoded: bytes
    labels_before: Mapping[str, str] = field(default_factory=dict)
    fields_before: Mapping[str, str] = field(default_factory=dict)

    @property
    def document(self) -> Document:
        """The document, decoded at each access."""
        decoded: Document = msgspec.json.decode(self.encoded)
        return decoded


FieldExtractor = Callable[[Document], Mapping[str, str]]
SELECTABLE: dict[Kind, FieldExtractor] = {}
"""Selectable fields per kind, without metadata.name and metadata.namespace. `hub.api.query.selection` fills it."""
