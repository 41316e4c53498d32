"""Readoption of agents whose certificates a restored hub has signed after its backup and no longer knows.

Their recovery certificate is accepted for `Recover` once it has a record. It gets one if a CA of the hub signed it, it began in
the lost interval, and no revocation list given at the restore names it. An unknown cluster is created again and needs
acceptance, since its former acceptance is lost.
"""

from dataclasses import dataclass
from datetime import timedelta

from hub.api import restorations as rules
from hub.api.certificateauthorities.authority import ADMITTED, AuthorityRecord
from hub.api.certificates import BACKDATED, CertificateRecord, Purpose
from hub.api.events import EventRecord
from hub.api.managedclusters.cluster import JoinRequest
from hub.api.meta.change import MANAGED_CLUSTERS, Key
from hub.api.restorations import Restoration
from hub.ports import Transaction
from hub.registry.events import service as events
from hub.registry.managedclusters import service as clusters
from hub.registry.recovery.restore import restorations
from machinery import pki
from machinery.errors import DenialCause, UnauthorizedError
from machinery.identity import RECOVERY_USER_PREFIX, AgentId, ClusterName, recovery_subject
from machinery.pki import CertificateFacts

ACTOR = "system:hub:readoption"
REASON = "ReadoptedAfterRestore"
LOST = (
    "this certificate was signed after the backup that the hub was restored from was made, and the hub has no record of it: "
    "the recovery certificate beside it may bring its agent back"
)


@dataclass(frozen=True, slots=True)
class Returning:
    """An agent with a recovery certificate (PEM or DER) that has no record."""

    certificate: bytes
    cluster: ClusterName
    agent: AgentId
    cluster_uid: str
    lease_duration: timedelta


def refusal_of(tx: Transaction, facts: CertificateFacts) -> UnauthorizedError | None:
    """The error for a certificate without a record that a restore has lost; None for any other."""
    if tx.certificates.by_serial(facts.serial) is not None or rules.covering(restorations(tx), facts.not_before) is None:
        return None
    return UnauthorizedError(LOST, causes=DenialCause.CERTIFICATE_LOST.because(LOST))


def readopt(tx: Transaction, returning: Returning) -> None:
    """Add the certificate's record, and the cluster if it is unknown. Raises UnauthorizedError if it may not return."""
    facts = pki.parse_certificate(returning.certificate)
    if tx.certificates.by_serial(facts.serial) is not None:
        return  # readopted concurrently, or revoked by a list: the record decides
    signer, restored = _signer(tx, returning.certificate), rules.covering(restorations(tx), facts.not_before)
    if signer is None or restored is None or facts.subject != recovery_subject(returning.cluster, returning.agent):
        raise UnauthorizedError("this certificate is not known to the hub: register again with a bootstrap kubeconfig")
    tx.certificates.add(_record(facts, returning, signer))
    if tx.objects.get(MANAGED_CLUSTERS, Key("", returning.cluster)) is None:
        joining = JoinRequest(returning.cluster, returning.cluster_uid, returning.agent)
        clusters.enter(tx, joining, ACTOR, returning.lease_duration)
    about = clusters.find(tx, returning.cluster).document
    events.tell(tx, [EventRecord(returning.cluster, about, REASON, _message(returning, restored))], ACTOR)


def needs_approval(tx: Transaction, holder: CertificateRecord) -> bool:
    """Whether requests of this holder need approval: it was readopted, and the restore was ordered with APPROVAL."""
    if not holder.is_readopted:
        return False
    found = rules.covering(restorations(tx), holder.not_before)
    return found is not None and found.readopts is rules.Readopts.APPROVAL


def _signer(tx: Transaction, certificate: bytes) -> AuthorityRecord | None:
    admitted = (each for each in tx.authorities.all() if each.phase in ADMITTED and not each.is_given_up)
    return next((each for each in admitted if pki.is_issued_by(certificate, each.certificate)), None)


def _record(facts: CertificateFacts, returning: Returning, signer: AuthorityRecord) -> CertificateRecord:
    return CertificateRecord(
        serial=facts.serial,
        purpose=Purpose.RECOVERY,
        user=f"{RECOVERY_USER_PREFIX}{returning.cluster}:{returning.agent}",
        groups=(),
        not_before=facts.not_before,
        not_after=facts.not_after,
        key_hash=facts.key_hash,
        issued_at=facts.not_before + BACKDATED,
        cluster=returning.cluster,
        agent=returning.agent,
        signed_by=signer.signer,
    )


def _message(returning: Returning, restored: Restoration) -> str:
    return (
        f'agent "{returning.agent}" comes back: its certificate was signed after the backup of '
        f"{restored.made:%Y-%m-%dT%H:%M:%SZ}, from which the hub was restored"
    )
