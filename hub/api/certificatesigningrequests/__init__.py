"""CertificateSigningRequests: submission, the state of a request, its retention.

Sources: Kubernetes' certificates.k8s.io/v1 and controller-manager; OCM's approver rules (exact subjects, CVE-2026-4740);
ADR 0012.
"""

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any

from hub.api.bootstrapcredentials import Attested
from hub.api.certificates import CertificateRecord
from hub.api.meta import document as doc
from machinery.errors import InvalidError
from machinery.identity import (
    CLUSTER_LABEL,
    SIGNER,
    AddOnName,
    AgentId,
    ClusterName,
    CredentialId,
    SerialNumber,
    parse_bootstrap_user,
)
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time, parse_time

API_VERSION = "certificates.k8s.io/v1"
KIND = "CertificateSigningRequest"
USAGES = ("digital signature", "key encipherment", "client auth")
APPROVED, DENIED, FAILED = "Approved", "Denied", "Failed"
AUTO_APPROVED_REASON = "AutoApprovedByHubCSRApprovingController"
AUTO_APPROVED_MESSAGE = "Auto approving Managed cluster agent certificate after SubjectAccessReview."
REFUSED_REASON = "SignerValidationFailure"

ADDON_LABEL = "open-cluster-management.io/addon-name"
RECOVERY_ANNOTATION = "hub.open-cluster-management.io/recovery-certificate"
"""Annotation: PEM chain of the recovery certificate that was issued together with the certificate."""
SERIAL_EXTRA = "hub.open-cluster-management.io/certificate-serial"
"""Key of `spec.extra`: hex serial number of the requester's certificate."""

MIN_DURATION = timedelta(minutes=10)
MAX_ASKED_SECONDS = 2**31 - 1
"""Maximum of `spec.expirationSeconds` in Kubernetes. The hub treats a greater number as this maximum."""
MAX_PENDING = 20
"""Largest number of undecided requests of one requester for one cluster."""


@dataclass(frozen=True, slots=True)
class AddOnRequest:
    """The add-on that a certificate is for, and the signer of its registration."""

    name: AddOnName
    signer_name: str


@dataclass(frozen=True, slots=True)
class Submission:
    """A CSR from an agent. `requester`: the record of the certificate that the agent presented."""

    cluster: ClusterName
    agent: AgentId
    request: bytes
    """PEM, one CERTIFICATE REQUEST block."""
    requester: CertificateRecord
    cluster_uid: str = ""
    requested_duration: timedelta | None = None
    addon: AddOnRequest | None = None
    attested: Attested | None = None
    """The verified attestation; None if the hub required none."""


@dataclass(frozen=True, slots=True)
class Requester:
    """The user that creates a CSR through the Kubernetes API; stored in `spec.username`, `groups`, `uid` and `extra`."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class RequestPhase(StrEnum):
    PENDING = "Pending"
    APPROVED = "Approved"
    DENIED = "Denied"
    FAILED = "Failed"
    ISSUED = "Issued"


FINAL_PHASES = (RequestPhase.DENIED, RequestPhase.FAILED, RequestPhase.ISSUED)


@dataclass(frozen=True, slots=True)
class RequestState:
    """State of a request. The chains are PEM, leaf first, and set only if ISSUED."""

    phase: RequestPhase
    reason: str = ""
    message: str = ""
    certificate: bytes = b""
    recovery_certificate: bytes = b""

    @property
    def is_final(self) -> bool:
        return self.phase in FINAL_PHASES


def is_for_a_client(request: Document) -> bool:
    """Whether the request names the signer kube-apiserver-client, and is for a client certificate without other key usages."""
    spec = doc.mapping(request, "spec")
    usages = spec.get("usages") or ()
    return spec.get("signerName") == SIGNER and "client auth" in usages and set(usages) <= set(USAGES)


def phase(request: Document) -> RequestPhase:
    """Return the first phase that applies: issued, denied, failed, approved, pending."""
    if doc.mapping(request, "status").get("certificate"):
        return RequestPhase.ISSUED
    present = {entry.get("type") for entry in doc.conditions(request) if entry.get("status", "True") == "True"}
    return next(
        (RequestPhase(decision) for decision in (DENIED, FAILED, APPROVED) if decision in present), RequestPhase.PENDING
    )


def state(request: Document) -> RequestState:
    current = phase(request)
    issued = current is RequestPhase.ISSUED
    decision = APPROVED if issued else current
    condition: Mapping[str, Any] = next((entry for entry in doc.conditions(request) if entry.get("type") == decision), {})
    return RequestState(
        phase=current,
        reason=str(condition.get("reason") or ""),
        message=str(condition.get("message") or ""),
        certificate=b64decode(doc.mapping(request, "status")["certificate"]) if issued else b"",
        recovery_certificate=doc.annotations(request).get(RECOVERY_ANNOTATION, "").encode() if issued else b"",
    )


def pem(request: Document) -> bytes:
    """Return the decoded `spec.request`. Raises InvalidError if it is not base64."""
    try:
        return b64decode(str(doc.mapping(request, "spec").get("request") or ""), validate=True)
    except ValueError:
        raise InvalidError("spec.request is not base64: encode the PEM block in base64") from None


def fingerprint(request: Document) -> str:
    """Return a digest that is equal for requests with the same requester, signer, add-on and CSR."""
    spec = doc.mapping(request, "spec")
    asked = (spec.get("username"), spec.get("signerName"), doc.labels(request).get(ADDON_LABEL), spec.get("request"))
    return sha256("\0".join(str(part or "") for part in asked).encode()).hexdigest()


def labelled(request: Document, cluster: ClusterName) -> dict[str, Any]:
    """Return the request with the label of `cluster`. Raises InvalidError if the request has the label of another cluster."""
    named = doc.labels(request).get(CLUSTER_LABEL)
    if named not in (None, cluster):
        raise InvalidError(f'the label {CLUSTER_LABEL} names "{named[:80]}", but the request is for cluster "{cluster}"')
    return doc.with_metadata(request, labels={**doc.labels(request), CLUSTER_LABEL: cluster})


def with_requester(request: Document, requester: Requester) -> dict[str, Any]:
    """Return a copy of `request` without status, and with the requester's identity in the spec."""
    extra = {name: list(values) for name, values in requester.extra.items()}
    identity = {"username": requester.user, "uid": requester.uid, "groups": list(requester.groups), "extra": extra}
    spec = {name: value for name, value in doc.mapping(request, "spec").items() if name not in identity}
    given = {name: value for name, value in identity.items() if value or name == "groups"}
    return {**request, "spec": {**spec, **given}, "status": {}}


def counted_with(request: Document) -> tuple[str, bool]:
    """Return what undecided requests are counted by: the requester's user name, and whether the request is for an add-on."""
    return str(doc.mapping(request, "spec").get("username") or ""), ADDON_LABEL in doc.labels(request)


def submitted_document(submission: Submission, name: str) -> dict[str, Any]:
    requester = submission.requester
    labels = {CLUSTER_LABEL: str(submission.cluster)}
    signer = SIGNER
    if submission.addon:
        labels[ADDON_LABEL] = submission.addon.name
        signer = submission.addon.signer_name
    spec: dict[str, Any] = {
        "request": doc.base64_text(submission.request),
        "signerName": signer,
        "usages": list(USAGES),
        "username": requester.user,
        "groups": [*requester.groups, "system:authenticated"],
        "extra": {SERIAL_EXTRA: [f"{requester.serial:x}"]},
    }
    if submission.requested_duration:
        asked = max(submission.requested_duration, MIN_DURATION).total_seconds()
        spec["expirationSeconds"] = min(round(asked), MAX_ASKED_SECONDS)
    metadata = {"name": name, "generateName": name_prefix(submission), "labels": labels}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec, "status": {}}


def name_prefix(submission: Submission) -> str:
    """Return OCM's generateName: `<cluster>-`, for an add-on `addon-<cluster>-<addon>-`."""
    return f"addon-{submission.cluster}-{submission.addon.name}-" if submission.addon else f"{submission.cluster}-"


def requester_serial(request: Document) -> SerialNumber | None:
    """Return the serial number of the requester's certificate, as recorded by the hub; None if none is recorded."""
    values = doc.sequence(request, "spec", "extra", SERIAL_EXTRA)
    return SerialNumber(int(str(values[0]), 16)) if values else None


def bootstrap_credential(request: Document) -> CredentialId | None:
    """Return the requester's bootstrap credential; None if the requester used anything else."""
    return parse_bootstrap_user(str(doc.mapping(request, "spec").get("username") or ""))


def requested_duration(request: Document) -> timedelta | None:
    seconds = doc.mapping(request, "spec").get("expirationSeconds")
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds <= 0:
        return None
    return timedelta(seconds=min(seconds, MAX_ASKED_SECONDS))


def with_decision(request: Document, decision: str, reason: str, message: str, now: datetime) -> dict[str, Any]:
    """Return a copy of `request` with the condition that `decision` names: Approved, Denied or Failed."""
    entry = {"type": decision, "status": "True", "reason": reason, "message": message}
    entry |= dict.fromkeys(("lastUpdateTime", "lastTransitionTime"), format_time(now))
    return doc.with_status(request, conditions=[*doc.conditions(request), entry])


def with_certificate(request: Document, chain: bytes, recovery: bytes) -> dict[str, Any]:
    issued = doc.with_status(request, certificate=doc.base64_text(chain))
    return doc.with_annotations(issued, {RECOVERY_ANNOTATION: recovery.decode("ascii")} if recovery else {})


def created_at(request: Document) -> datetime:
    return parse_time(str(doc.mapping(request, "metadata")["creationTimestamp"]))


def selectable(request: Document) -> dict[str, str]:
    return {"spec.signerName": str(doc.mapping(request, "spec").get("signerName") or "")}


@dataclass(frozen=True, slots=True)
class RequestRetention:
    """Retention of requests. An issued request is removed no later than at the end of its certificate."""

    finished: timedelta = timedelta(hours=1)
    """Time from the issuance, denial or failure of a request to its removal."""
    pending: timedelta = timedelta(hours=24)
    """Time until a request without a decision, or an approved request without a signature, is removed."""


def removed_at(request: Document, ends: RequestRetention, not_after: datetime | None) -> datetime:
    """Return when a request is removed. `not_after`: end of the issued certificate; None: the certificate sets no limit."""
    current = phase(request)
    is_final, is_approved = current in FINAL_PHASES, current is RequestPhase.APPROVED
    counted = [each for each in doc.conditions(request) if is_final or (is_approved and each.get("type") == APPROVED)]
    moments = [each.get("lastUpdateTime") or each.get("lastTransitionTime") for each in counted]
    since = max((parse_time(str(moment)) for moment in moments if moment), default=created_at(request))
    since = min(since, datetime.max.replace(tzinfo=UTC) - ends.pending - ends.finished)  # approvers may write any time
    if not is_final:
        return since + ends.pending
    return min(since + ends.finished, not_after or datetime.max.replace(tzinfo=UTC))
