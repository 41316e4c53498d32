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
