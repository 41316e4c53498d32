"""CertificateSigningRequests: what a requester submits, the strict checks on it, and the state that the document tells.

Sources: Kubernetes' certificates.k8s.io/v1; OCM's approver rules (exact subjects, CVE-2026-4740); architecture D9.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from hub.domain.certificate import CertificateRecord
from machinery.identity import AddOnName, AgentId, ClusterName

SIGNER = "kubernetes.io/kube-apiserver-client"
APPROVED, DENIED, FAILED = "Approved", "Denied", "Failed"


@dataclass(frozen=True, slots=True)
class AddOnRequest:
    """The add-on that a certificate is for, and the signer its registration names."""

    name: AddOnName
    signer_name: str


@dataclass(frozen=True, slots=True)
class Submission:
    """A CSR as an agent hands it in. `requester` is the record of the certificate that the peer came with."""

    cluster: ClusterName
    agent: AgentId
    request: bytes
    """PEM, one CERTIFICATE REQUEST block."""
    requester: CertificateRecord
    cluster_uid: str = ""
    requested_duration: timedelta | None = None
    addon: AddOnRequest | None = None


@dataclass(frozen=True, slots=True)
class Requester:
    """Who creates a CSR through the Kubernetes API: goes into `spec.username`, `groups` and `uid`."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""


class RequestPhase(StrEnum):
    PENDING = "Pending"
    APPROVED = "Approved"
    DENIED = "Denied"
    FAILED = "Failed"
    ISSUED = "Issued"


@dataclass(frozen=True, slots=True)
class RequestState:
    """Where a request stands. The chains are PEM, leaf first, with ISSUED only."""

    phase: RequestPhase
    reason: str = ""
    message: str = ""
    certificate: bytes = b""
    recovery_certificate: bytes = b""

    @property
    def is_final(self) -> bool:
        return self.phase in (RequestPhase.DENIED, RequestPhase.FAILED, RequestPhase.ISSUED)
