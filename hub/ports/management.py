"""The Kubernetes cluster that has the hub behind it."""

from collections.abc import Mapping
from typing import Any, Protocol


class Management(Protocol):
    """The Kubernetes cluster that has the hub as an aggregated API server. Everything raises MusterError."""

    async def config_map(self) -> Mapping[str, Any]:
        """`kube-system/extension-apiserver-authentication`."""

    async def review(self, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """The status of a TokenReview or a SubjectAccessReview."""

    async def keep_bundle(self, bundle: bytes) -> None:
        """Writes the CAs by which the cluster knows this hub (PEM) where they differ."""


class KeySecret(Protocol):
    """A Secret of the cluster that the hub runs in. Everything raises MusterError."""

    async def read(self) -> Mapping[str, bytes]:
        """What is in it; nothing when there is no such Secret."""

    async def write(self, changes: Mapping[str, bytes | None]) -> None:
        """Sets these entries and removes those that are None, and leaves all others; makes the Secret where there is none."""
