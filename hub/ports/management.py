"""Access to the Kubernetes clusters that the hub works with: the one that aggregates its API, and the one it runs in."""

from collections.abc import Mapping
from typing import Any, Protocol


class Management(Protocol):
    """The Kubernetes cluster that serves the hub as an aggregated API server. All methods raise MusterError."""

    async def config_map(self) -> Mapping[str, Any]:
        """Data of the ConfigMap `kube-system/extension-apiserver-authentication`."""

    async def review(self, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create a TokenReview or a SubjectAccessReview and return its status."""

    async def keep_bundle(self, bundle: bytes) -> None:
        """Write the CAs (PEM) with which the cluster verifies this hub, if they differ."""


class KeySecret(Protocol):
    """A Secret of the cluster that the hub runs in. All methods raise MusterError."""

    async def read(self) -> Mapping[str, bytes]:
        """The entries of the Secret; empty if it does not exist."""

    async def write(self, changes: Mapping[str, bytes | None]) -> None:
        """Set these entries and delete those that are None. Other entries stay. Creates the Secret if it does not exist."""
