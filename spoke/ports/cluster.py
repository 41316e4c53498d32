"""This side as the agent needs it: the managed cluster, its secrets in the management cluster, and where people are told."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from machinery.errors import ForbiddenError
from machinery.identity import ClusterName
from spoke.domain.report import NodeResources, ReportedClaim


class Cluster(Protocol):
    """The managed cluster."""

    async def uid(self) -> str:
        """UID of its kube-system namespace."""

    async def version(self) -> str:
        """The API server's gitVersion."""

    async def health(self) -> "ApiServerHealth":
        """One look at /livez, /healthz where /livez is not served (404 or 403). Never raises for an unhealthy server."""

    async def nodes(self) -> Sequence[NodeResources]: ...

    async def claims(self) -> Sequence[ReportedClaim]:
        """ClusterClaims and ClusterProperties, as far as they are enabled and served, without those that are spoke-only."""

    async def labelled_namespaces(self, label: str) -> frozenset[str]:
        """Names of the namespaces whose `label` is "true"."""

    async def namespace_exists(self, name: str) -> bool:
        """Whether there is one of that name, as far as it may be read."""

    async def label_namespace(self, name: str, label: str, value: str, *, create: bool) -> None:
        """Sets one label of a namespace; one that is not there is made, or with `create` False passed over."""

    async def lease_renewed_at(self, namespace: str, name: str) -> datetime | None:
        """The renewTime of a Lease; None: no such lease."""

    def changes(self) -> AsyncIterator[str]:
        """Says what changed (`nodes`, `claims`), coalesced; reconnects by itself."""


@dataclass(frozen=True, slots=True)
class ApiServerHealth:
    ok: bool
    status_code: int | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SecretSnapshot:
    """A secret's content and the version it was read at; `version` None: it does not exist."""

    contents: Mapping[str, bytes]
    version: str | None


class RefusedSecretError(ForbiddenError):
    """The agent does not touch this secret: it is not its own, or not where or named as it may be."""


class Secrets(Protocol):
    """Secrets of a namespace in the management cluster."""

    async def read(self, name: str) -> SecretSnapshot: ...

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        """Replaces the contents, guarded by `version` (None: create). Raises ConflictError, AlreadyExistsError."""

    async def delete(self, name: str) -> None:
        """Deletes it; missing is fine."""

    async def named(self, prefix: str) -> Sequence[str]:
        """The names, with this beginning, of the secrets that agents have made here; nothing where that cannot be asked."""
        del prefix
        return ()

    def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        """The secret now and after every change; reconnects by itself."""


@dataclass(frozen=True, slots=True, order=True)
class SecretPlace:
    """Where a secret lies. `hosted`: in the management cluster; else in the managed one, which may be the same."""

    namespace: str
    name: str
    hosted: bool = True


class Remains(Protocol):
    """What an agent leaves behind in its clusters: to be found again without knowing what it did."""

    async def slots(self) -> Sequence[str]:
        """Names of the credential slots in the component namespace."""

    async def addons(self, cluster: ClusterName) -> Sequence[SecretPlace]:
        """Credentials of add-ons that this cluster's agent has made, and requests for them that pend."""

    async def remove(self, place: SecretPlace) -> None:
        """Deletes it; missing is fine."""

    async def forget_lease(self) -> None:
        """Deletes the agent's Lease; missing is fine."""


class Attest(Protocol):
    """Proves to a hub which cluster this is."""

    async def token(self, audience: str) -> str:
        """A token of the managed cluster's own issuer, for one hub. Raises MusterError that says what to do."""


class CredentialDirectory(Protocol):
    """Where the hub kubeconfig secret is mirrored for others to mount or read."""

    def replace(self, contents: Mapping[str, bytes]) -> None:
        """Makes the directory hold exactly `contents`, atomically, files 0600, directory 0700."""

    def read(self) -> Mapping[str, bytes]: ...


class Announcer(Protocol):
    """Shows an Event to those who look after the management cluster."""

    async def announce(self, reason: str, message: str, *, warning: bool) -> None: ...
