"""Revocations: target, reason, result, and the messages for holders of revoked certificates.

The record of a revoked certificate has a one-word reason: the hub's own (for example a deleted cluster), or an operator's, from
RFC 5280. The reason determines the message for the holder and the reason code in revocation lists.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from hub.api.certificates import CertificateRecord
from hub.api.meta import document as doc
from machinery.errors import Cause, DenialCause, required
from machinery.identity import AgentId, ClusterName, CredentialId, SerialNumber
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_micro_time, format_time, parse_time

MAX_SHOWN = 100
"""Largest number of certificates listed in a Revocation; the count includes all."""


class Reason(StrEnum):
    """Reasons that an operator can give for a revocation, from RFC 5280 (5.3.1)."""

    UNSPECIFIED = "Unspecified"
    KEY_COMPROMISE = "KeyCompromise"
    AFFILIATION_CHANGED = "AffiliationChanged"
    SUPERSEDED = "Superseded"
    CESSATION_OF_OPERATION = "CessationOfOperation"
    PRIVILEGE_WITHDRAWN = "PrivilegeWithdrawn"


CLUSTER_DELETED, CLUSTER_LEFT = "ClusterDeleted", "ClusterLeft"
CLUSTER_REBUILT, CREDENTIAL_REVOKED = "ClusterRebuilt", "CredentialRevoked"
"""Reasons of revocations that the hub itself decides."""

_LISTED = {
    CLUSTER_DELETED: "cessationOfOperation",
    CLUSTER_LEFT: "cessationOfOperation",
    CLUSTER_REBUILT: "superseded",
    CREDENTIAL_REVOKED: "privilegeWithdrawn",
    Reason.KEY_COMPROMISE: "keyCompromise",
    Reason.AFFILIATION_CHANGED: "affiliationChanged",
    Reason.SUPERSEDED: "superseded",
    Reason.CESSATION_OF_OPERATION: "cessationOfOperation",
    Reason.PRIVILEGE_WITHDRAWN: "privilegeWithdrawn",
}
_CAUSES = {
    CLUSTER_DELETED: DenialCause.CLUSTER_DELETED,
    CLUSTER_LEFT: DenialCause.CLUSTER_DELETED,
    CLUSTER_REBUILT: DenialCause.CLUSTER_REBUILT,
    CREDENTIAL_REVOKED: DenialCause.CREDENTIAL_REVOKED,
}
_MESSAGES = {
    DenialCause.CLUSTER_DELETED: "this cluster was deleted here: register again with a bootstrap kubeconfig",
    DenialCause.CLUSTER_REBUILT: "another cluster has this name now: register under another name",
    DenialCause.CREDENTIAL_REVOKED: "this bootstrap credential is revoked: get a new bootstrap kubeconfig",
}


def listed_reason(reason: str | None) -> str:
    """Return the reason code in a revocation list for the reason in a certificate's record; empty if this is unspecified."""
    return _LISTED.get(reason or "", "")


def recorded_reason(listed: str) -> str:
    """Return the `Reason` for a reason code of a revocation list. Lists do not show who revoked, so it is an operator's."""
    return next((reason.value for reason in Reason if _LISTED.get(reason) == listed), Reason.UNSPECIFIED.value)


def denial_of(reason: str | None) -> tuple[DenialCause, str]:
    """Return denial cause and message for the holder of a certificate that was revoked for this reason."""
    cause = _CAUSES.get(reason or "", DenialCause.CERTIFICATE_REVOKED)
    why = f" ({reason})" if reason and reason != Reason.UNSPECIFIED else ""
    revoked = f"this certificate is revoked{why}: register again with a new bootstrap kubeconfig"
    return cause, _MESSAGES.get(cause, revoked)


@dataclass(frozen=True, slots=True)
class RevocationTarget:
    """A cluster with all credentials, an agent of it, all certificates with the key of `serial`, or a bootstrap credential."""

    cluster: ClusterName | None = None
    agent: AgentId | None = None
    serial: SerialNumber | None = None
    credential: CredentialId | None = None


@dataclass(frozen=True, slots=True)
class RevokedObjects:
    certificates: tuple[CertificateRecord, ...] = ()
    credentials: tuple[CredentialId, ...] = ()
    requests: tuple[str, ...] = ()
    accounts: int = 0
    """ServiceAccounts of add-ons whose tokens are no longer accepted."""

    @property
    def cluster(self) -> ClusterName | None:
        """The cluster to which all the certificates belong; None if there are no certificates or several clusters."""
        found = {record.cluster for record in self.certificates}
        return found.pop() if len(found) == 1 else None


def target_of(document: Document) -> RevocationTarget:
    """Return the target of a Revocation for which `violations` has returned nothing."""
    spec = doc.mapping(document, "spec")
    serial = spec.get("serial")
    return RevocationTarget(
        cluster=ClusterName(spec["cluster"]) if spec.get("cluster") else None,
        agent=AgentId(spec["agent"]) if spec.get("agent") else None,
        serial=SerialNumber(int(serial, 16)) if serial else None,
        credential=CredentialId(spec["bootstrapCredential"]) if spec.get("bootstrapCredential") else None,
    )


def reason_of(document: Document) -> Reason:
    return Reason(str(doc.mapping(document, "spec").get("reason") or Reason.UNSPECIFIED))


def violations(document: Document) -> Sequence[Cause]:
    """Return the mistakes in the spec of a Revocation that the schema does not detect."""
    spec = doc.mapping(document, "spec")
    named = [name for name in ("cluster", "serial", "bootstrapCredential") if spec.get(name)]
    causes = []
    if len(named) != 1:
        causes.append(required("spec", "exactly one of cluster, serial and bootstrapCredential"))
    if spec.get("agent") and not spec.get("cluster"):
        causes.append(required("spec.cluster", "the cluster of the agent"))
    return causes


def status_of(ended: RevokedObjects, actor: str, now: datetime, *, uid: str = "", cluster: str = "") -> dict[str, Any]:
    """Return the status of a Revocation of the objects `ended`. `cluster`, `uid`: of the ManagedCluster concerned, if any."""
    shown = sorted(ended.certificates, key=lambda record: (record.purpose, record.serial))[:MAX_SHOWN]
    return {
        "revokedBy": actor,
        "revokedAt": format_micro_time(now),
        "certificatesRevoked": len(ended.certificates),
        "certificates": [
            {
                "serial": f"{record.serial:x}",
                "purpose": str(record.purpose),
                "notAfter": format_time(record.not_after),
                **_known(cluster=record.cluster, agent=record.agent, addon=record.addon),
            }
            for record in shown
        ],
        "bootstrapCredentials": list(ended.credentials),
        "requestsRefused": list(ended.requests),
        "serviceAccountsEnded": ended.accounts,
        **_known(cluster=cluster or ended.cluster, clusterUID=uid),
    }


def _known(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def revoked_at(document: Document) -> datetime | None:
    """Return the time of a Revocation; None for a document without status."""
    text = doc.mapping(document, "status").get("revokedAt")
    return parse_time(str(text)) if text else None


def last_of_cluster(documents: Iterable[Document]) -> datetime | None:
    """Return when a cluster, not only an agent of it, was last revoked; None: never. `documents`: the cluster's Revocations."""
    whole = (document for document in documents if not doc.mapping(document, "spec").get("agent"))
    return max((moment for each in whole if (moment := revoked_at(each)) is not None), default=None)


def describe(document: Document) -> str:
    """Return a text for the Event and for hubctl: what was revoked, by whom and why, and how many objects this ended."""
    spec, status = doc.mapping(document, "spec"), doc.mapping(document, "status")
    counted = (
        ("certificate", int(status.get("certificatesRevoked") or 0)),
        ("bootstrap credential", len(status.get("bootstrapCredentials") or ())),
        ("certificate request", len(status.get("requestsRefused") or ())),
        ("ServiceAccount", int(status.get("serviceAccountsEnded") or 0)),
    )
    what = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counted if count)
    why = [str(spec.get(name)) for name in ("reason", "message") if spec.get(name)]
    return (
        f"{subject_of(document)} revoked by {status.get('revokedBy', '')}"
        + (f" ({': '.join(why)})" if why else "")
        + (f": {what}" if what else ": nothing of it was valid any more")
    )


def subject_of(document: Document) -> str:
    """Description of the revocation's target, for messages."""
    spec = doc.mapping(document, "spec")
    if spec.get("agent"):
        return f'agent "{spec["agent"]}" of cluster "{spec.get("cluster")}"'
    if spec.get("cluster"):
        return f'cluster "{spec["cluster"]}"'
    if spec.get("serial"):
        return f"serial {spec['serial']}"
    return f"bootstrap credential {spec.get('bootstrapCredential')}"


def selectable(document: Document) -> Mapping[str, str]:
    spec = doc.mapping(document, "spec")
    return {f"spec.{name}": str(spec.get(name) or "") for name in ("cluster", "agent", "serial", "bootstrapCredential")}
