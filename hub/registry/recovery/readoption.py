"""Agents that a restored hub has forgotten: they hold certificates that it signed after the backup was made.

Their recovery certificate opens `Recover` again, once it has a record. It gets one where the hub's own signature is on it, it
began in the time that was lost, and no revocation list that was given at the restore names it. A cluster that the hub does not
know either is entered anew, and somebody accepts it: that it was accepted once is lost with the rest.
"""

from dataclasses import dataclass
from datetime import timedelta

from hub.api.certificateauthorities.authority import ADMITTED, AuthorityRecord
from hub.api.certificates.certificate import BACKDATED, CertificateRecord, Purpose
from hub.api.core.event import EventRecord
from hub.api.hubreplicas import restoration as rules
from hub.api.hubreplicas.restoration import Restoration
from hub.api.managedclusters.cluster import JoinRequest
from hub.api.meta.change import MANAGED_CLUSTERS, Key
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
    """What the holder of a certificate without a record is told, where a restore has lost it; None: it never had one."""
    if tx.certificates.by_serial(facts.serial) is not None or rules.covering(restorations(tx), facts.not_before) is None:
        return None
    return UnauthorizedError(LOST, causes=DenialCause.CERTIFICATE_LOST.because(LOST))


def readopt(tx: Transaction, returning: Returning) -> None:
    """Gives the certificate its record, and the hub the cluster. Raises UnauthorizedError for one that does not come back."""
    facts = pki.parse_certificate(returning.certificate)
    if tx.certificates.by_serial(facts.serial) is not None:
        return  # somebody did so a moment ago, or a list names it: what is on record decides
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
    """Whether somebody has to approve what the holder of this record asks for: it has come back so, and that was the order."""
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
