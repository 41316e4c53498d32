"""Stored objects, queries over them, and entries of the change log, as values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

import msgspec

from hub.api.meta.field_sources import FieldSource, Where
from hub.api.meta.ordering import Place, SortOrder
from machinery.meta.selectors import Requirement

Document = Mapping[str, Any]
"""A Kubernetes object as decoded JSON; never modified in place."""

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
APPROVAL_RULES = Kind("approvalrules.hub")
REVOCATIONS = Kind("revocations.hub")
CREDENTIAL_ISSUERS = Kind("credentialissuers.hub")
CLUSTER_SETS = Kind("managedclustersets.cluster")
CLUSTER_SET_BINDINGS = Kind("managedclustersetbindings.cluster")
CLUSTER_PROFILES = Kind("clusterprofiles.multicluster.x-k8s.io")
JWT_AUTHENTICATORS = Kind("jwtauthenticators.login")
WEBHOOK_AUTHENTICATORS = Kind("webhookauthenticators.login")

SEALED = frozenset((SECRETS,))
"""Kinds whose documents the store encrypts. Names, labels and selectable fields are not encrypted."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """`namespace` is "" for cluster-scoped kinds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object with the exact bytes that are served; `document` decodes them at the first access."""

    kind: Kind
    key: Key
    uid: str
    revision: int
    encoded: bytes
    _decoded: list[Document] = field(default_factory=list, repr=False, compare=False)

    @property
    def document(self) -> Document:
        if not self._decoded:
            self._decoded.append(msgspec.json.decode(self.encoded))
        return self._decoded[0]


@dataclass(frozen=True, slots=True)
class Query:
    """Selects objects of a kind, ordered by key. `at`: as of an earlier revision.

    `past`: also of a revision that is kept for history only, from which no watch can resume.
    """

    namespace: str | None = None
    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    limit: int | None = None
    after: Key | None = None
    at: int | None = None
    where: Where | None = None
    past: bool = False
    order: SortOrder | None = None
    """Sort order in place of the keys' order; `after` is then the key of the object at `order.after`."""

    @property
    def moves(self) -> bool:
        """Whether the query uses heartbeats, which have no history."""
        named = (self.where.named() if self.where else frozenset()) | (self.order.named if self.order else frozenset())
        return FieldSource.BEAT in named or FieldSource.SESSION in named


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """`place`: sort position of the page's last object, if more follow."""

    items: tuple[StoredObject, ...]
    revision: int
    more: bool = False
    remaining: int | None = None
    place: Place = ()


class ChangeType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the change log. `encoded`: the document after the change; for a deletion its last state, new revision."""

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
        """Decoded at each access."""
        decoded: Document = msgspec.json.decode(self.encoded)
        return decoded


FieldExtractor = Callable[[Document], Mapping[str, str]]
SELECTABLE: dict[Kind, FieldExtractor] = {}
"""Selectable fields per kind, besides metadata.name and metadata.namespace; filled by `hub.api.query.selection`."""
