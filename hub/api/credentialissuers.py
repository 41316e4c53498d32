"""CredentialIssuer: strategies for operators' credentials to the cluster that the hub runs in, and their state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hub.api.meta import document as doc
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time

NAME = "hub"
"""Name of the hub's own CredentialIssuer."""
KUBE_CLUSTER_SIGNING = "KubeClusterSigningCertificate"
IMPERSONATION_PROXY = "ImpersonationProxy"
TOKEN_CREDENTIAL_REQUEST = "TokenCredentialRequestAPI"  # noqa: S105 - the name of a frontend
SUCCESS, ERROR = "Success", "Error"
TIME = "lastUpdateTime"
_WEIGHTS: Mapping[str, int] = {KUBE_CLUSTER_SIGNING: 2, IMPERSONATION_PROXY: 1}


@dataclass(frozen=True, slots=True)
class Strategy:
    """State of one strategy. `server` and `authority` (PEM in base64): the cluster that accepts its credentials.

    `signer`: the CA as in `signed_by` of certificate records.
    """

    type: str
    status: str
    reason: str
    message: str
    server: str = ""
    authority: str = ""
    signer: str = ""

    def as_document(self, now: datetime) -> dict[str, Any]:
        document: dict[str, Any] = {"type": self.type, "status": self.status, "reason": self.reason, "message": self.message}
        document[TIME] = format_time(now)
        if self.signer:
            document["signer"] = self.signer
        if self.server:
            info = {"server": self.server, "certificateAuthorityData": self.authority}
            document["frontend"] = {"type": TOKEN_CREDENTIAL_REQUEST, "tokenCredentialRequestInfo": info}
        return document


def new_issuer(api_version: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": "CredentialIssuer", "metadata": {"name": NAME}}


def with_strategy(issuer: Document, strategy: Strategy, now: datetime) -> dict[str, Any]:
    """Replace the strategy of the same type; unchanged if only the time differs."""
    merged = merge(doc.sequence(issuer, "status", "strategies"), strategy.as_document(now))
    return doc.with_status(issuer, strategies=merged)


def merge(strategies: Sequence[Mapping[str, Any]], new: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Sorted: strategies that clients should prefer first, then by type."""
    known = {str(each.get("type")): each for each in strategies}
    before = known.get(new["type"])
    if before is None or {**before, TIME: ""} != {**new, TIME: ""}:
        known[new["type"]] = new
    return [known[kind] for kind in sorted(known, key=lambda kind: (-_WEIGHTS.get(kind, 0), kind))]
