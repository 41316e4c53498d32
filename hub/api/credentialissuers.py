"""CredentialIssuer: strategies that issue operators' credentials for the hub's own Kubernetes cluster, and their state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

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
    """State of one strategy. `server`, `authority` (PEM in base64): address and CA of the cluster that accepts its credentials.

    `signer`: the signing CA, as in `signed_by` of certificate records.
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


def merge(strategies: Sequence[Mapping[str, Any]], new: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the strategies with the new state of one strategy. A state that differs only in its time replaces nothing.

    The strategies that clients should prefer come first. The other strategies are sorted by type.
    """
    known = {str(each.get("type")): each for each in strategies}
    before = known.get(new["type"])
    if before is None or {**before, TIME: ""} != {**new, TIME: ""}:
        known[new["type"]] = new
    return [known[kind] for kind in sorted(known, key=lambda kind: (-_WEIGHTS.get(kind, 0), kind))]
