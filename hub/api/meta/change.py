"""Stored objects, queries over them, and the log of their changes, as values."""

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
"""A Kubernetes object as decoded JSON; never changed in place."""

Kind = NewType("Kind", str)
"""`<resource>.<group>`, as in `leases.coordination.k8s.io`, and `managedclusters.cluster` whatever the suffix of our groups."""

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
"""Kinds whose documents are encrypted wherever the store keeps them. Their names, labels and selectable fields are not."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """`namespace` is "" for cluster-scoped kinds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object with the very bytes that are served; they are decoded when somebody looks into the document."""

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
    """Which objects of a kind, in the order of their keys. `at`: as of an earlier revision.

    `past`: also of one that is only remembered, from which no watch could go on.
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
    """Instead of that of the keys; `after` is then the key of the object at `order.after`."""

    @property
    def moves(self) -> bool:
        """Whether it asks about heartbeats, which have no past."""
        named = (self.where.named() if self.where else frozenset()) | (self.order.named if self.order else frozenset())
        return FieldSource.BEAT in named or FieldSource.SESSION in named


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """`place`: where the last object of a page with more to come stands in the order that was asked for."""

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
    """One row of the change log. `encoded` is the document after (at a delete the last one, with the delete's revision)."""

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
        """Decoded anew each time."""
        decoded: Document = msgspec.json.decode(self.encoded)
        return decoded


FieldExtractor = Callable[[Document], Mapping[str, str]]
SELECTABLE: dict[Kind, FieldExtractor] = {}
"""Per kind: the selectable fields beside metadata.name and metadata.namespace; filled by `hub.api.query.selection`."""
