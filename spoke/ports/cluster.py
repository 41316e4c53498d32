"""Ports to the managed cluster and to secrets, and for Events. The management cluster is the one with the agent's Secrets."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from machinery.errors import ForbiddenError
from machinery.identity import ClusterName
from spoke.domain.report import NodeResources, ReportedClaim


class Cluster(Protocol):
    async def uid(self) -> str:
        """Return the UID of the cluster's namespace kube-system."""

    async def version(self) -> str:
        """Return the API server's gitVersion."""

    async def health(self) -> "ApiServerHealth":
        """Return the health by /livez, or by /healthz if /livez answers 404 or 403. An unhealthy server raises no error."""

    async def nodes(self) -> Sequence[NodeResources]: ...

    async def claims(self) -> Sequence[ReportedClaim]:
        """Return ClusterClaims and ClusterProperties, if enabled and served, without those with the label `.../spoke-only`."""

    async def labelled_namespaces(self, label: str) -> frozenset[str]:
        """Return the names of the namespaces whose label `label` has the value "true"."""

    async def namespace_exists(self, name: str) -> bool:
        """Return whether the namespace exists. Return True also if the agent may not read it."""

    async def label_namespace(self, name: str, label: str, value: str, *, create: bool) -> None:
        """Set one label of a namespace. If the namespace does not exist: create it if `create` is true, else do nothing."""

    async def lease_renewed_at(self, namespace: str, name: str) -> datetime | None:
        """Return the renewTime of a Lease; None: the Lease does not exist or was never renewed."""

    def changes(self) -> AsyncIterator[str]:
        """Yield `nodes` or `claims` when nodes or claims have changed. Changes in quick succession are yielded once.

        The watch reconnects automatically.
        """


@dataclass(frozen=True, slots=True)
class ApiServerHealth:
    ok: bool
    status_code: int | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SecretSnapshot:
    """A secret's content and version; `version` None: the secret does not exist."""

    contents: Mapping[str, bytes]
    version: str | None


class RefusedSecretError(ForbiddenError):
    """The agent must not use this secret: the agent has not created it, or its namespace or name is not allowed."""


class Secrets(Protocol):
    """Secrets of one namespace: in the management cluster, or, for add-ons, also in the managed cluster."""

    async def read(self, name: str) -> SecretSnapshot: ...

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        """Replace the contents if the secret still has this `version`, else raise ConflictError.

        `version` None: create the secret. Raises AlreadyExistsError if it exists.
        """

    async def delete(self, name: str) -> None:
        """Delete the secret. If it does not exist, do nothing."""

    async def named(self, prefix: str) -> Sequence[str]:
        """Return the names of Muster's secrets with this name prefix; empty: none, or listing is not supported."""
        del prefix
        return ()

    def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        """Yield the secret now and after every change. The watch reconnects automatically."""


@dataclass(frozen=True, slots=True, order=True)
class SecretPlace:
    """Location of a secret. `hosted` True: in the management cluster; False: in the managed cluster, which may be the same."""

    namespace: str
    name: str
    hosted: bool = True


class Remains(Protocol):
    """Finds and deletes the objects that an agent leaves behind in its clusters. The agent need not run."""

    async def slots(self) -> Sequence[str]:
        """Return the names of the slots (secrets with a hub's credential) in the agent's namespace."""

    async def addons(self, cluster: ClusterName) -> Sequence[SecretPlace]:
        """Return the secrets that the agent of `cluster` has created for add-ons: credentials and pending requests."""

    async def remove(self, place: SecretPlace) -> None:
        """Delete the secret at this place. If it does not exist, do nothing."""

    async def forget_lease(self) -> None:
        """Delete the agent's Lease. If it does not exist, do nothing."""


class Attest(Protocol):
    """Proves this cluster's identity to a hub."""

    async def token(self, audience: str) -> str:
        """Return a token that the managed cluster issues for one hub (`audience`). Raises MusterError with the remedy."""


class CredentialDirectory(Protocol):
    """The directory that mirrors the hub kubeconfig secret for other programs."""

    def replace(self, contents: Mapping[str, bytes]) -> None:
        """Make the directory hold exactly `contents`, atomically; files 0600, directory 0700."""

    def read(self) -> Mapping[str, bytes]: ...


class Announcer(Protocol):
    """Records Events for the operators of the management cluster."""

    async def announce(self, reason: str, message: str, *, warning: bool) -> None: ...
