"""Signs each approved request once. The hub's records determine the content of the certificate."""

from dataclasses import dataclass, replace
from typing import Any

from hub.api import certificates as profiles, certificatesigningrequests as csr_rules
from hub.api.bootstrapcredentials import CredentialUse, check_name
from hub.api.certificates import CertificateHolder, CertificateRecord, Lifetimes, Profile, Purpose
from hub.api.certificatesigningrequests import FAILED, RequestPhase, checks
from hub.api.managed_fields import HUB_WRITER
from hub.api.meta import document as doc
from hub.api.meta.change import REQUESTS
from hub.ports import Transaction, Written
from hub.ports.identities import Issuer
from hub.registry import certificates
from hub.registry.certificatesigningrequests import credential_uses, service as request_objects, submission
from hub.registry.generic.objects import write
from machinery.errors import ForbiddenError, InvalidError, MusterError
from machinery.identity import (
    CLUSTER_LABEL,
    SIGNER,
    AddOnName,
    CertificateSubject,
    ClusterName,
    CredentialId,
    agent_subject,
    cluster_name,
    recovery_subject,
)
from machinery.meta.objects import Document


@dataclass(frozen=True, slots=True)
class CertificateGrant:
    """The certificate that a request may get. `requester`: the record of the requester's certificate, if any."""

    purpose: Purpose
    subject: CertificateSubject
    public_key: bytes
    dns_names: tuple[str, ...]
    holder: CertificateHolder
    requester: CertificateRecord | None = None


def issue(tx: Transaction, name: str, issuer: Issuer, lifetimes: Lifetimes, actor: str) -> Written | None:
    """Sign an approved certificate request and store the result of `sign_request`. Raises NotFoundError.

    Returns None if there is nothing to sign (not approved, already issued, another signer).
    """
    stored = request_objects.find(tx, name)
    request = stored.document
    if doc.mapping(request, "spec").get("signerName") != SIGNER or csr_rules.phase(request) is not RequestPhase.APPROVED:
        return None
    final = sign_request(tx, request, stored.uid, issuer=issuer, lifetimes=lifetimes)
    return write(tx, REQUESTS, final, stored, actor, writer=HUB_WRITER)


def sign_request(
    tx: Transaction, request: Document, uid: str, *, issuer: Issuer, lifetimes: Lifetimes, grant: CertificateGrant | None = None
) -> dict[str, Any]:
    """Return the approved request with its certificate and recovery certificate, or with the condition Failed and the reason.

    The transaction that records and signs the certificates must also write the result. `grant`: the result of `grant_of`, if
    the caller already has it.
    """
    try:
        grant = grant or grant_of(tx, request)
        holder, first = grant.holder, grant.requester is None or grant.requester.purpose is Purpose.BOOTSTRAP
        use: CredentialUse | None = None
        if first and holder.credential is not None and holder.cluster is not None and holder.agent is not None:
            use = credential_uses.use_for(tx, holder.credential, holder.cluster, holder.agent)
    except MusterError as error:
        return csr_rules.with_decision(request, FAILED, csr_rules.REFUSED_REASON, error.message, tx.now)
    holder = replace(holder, request_uid=uid)
    start = tx.now - lifetimes.backdate
    lifetime = min(csr_rules.requested_duration(request) or lifetimes.agent, lifetimes.agent)
    profile = Profile(grant.purpose, grant.subject, grant.public_key, start, tx.now + lifetime, grant.dns_names)
    profiles = [profile]
    if grant.purpose is Purpose.AGENT and holder.cluster is not None and holder.agent is not None:
        subject = recovery_subject(holder.cluster, holder.agent)
        until = tx.now + lifetimes.recovery
        profiles.append(replace(profile, purpose=Purpose.RECOVERY, subject=subject, not_after=until))
    issued, *recovery = certificates.sign_all(tx, issuer, profiles, holder)
    if use is not None:
        credential_uses.spend(tx, replace(use, request=doc.name(request), issued_at=tx.now, serial=issued.serial))
    return csr_rules.with_certificate(request, issued.chain, recovery[0].chain if recovery else b"")


def grant_of(tx: Transaction, request: Document) -> CertificateGrant:
    """Return the certificate that the hub's records permit for the request. Raises InvalidError, ForbiddenError."""
    if not csr_rules.is_for_a_client(request):
        raise InvalidError(f"the signer {SIGNER} signs for client auth only: request the usages {', '.join(csr_rules.USAGES)}")
    requester = _requester(tx, request)
    facts = certificates.checked_request(csr_rules.pem(request))
    labels = doc.labels(request)
    if addon := labels.get(csr_rules.ADDON_LABEL):
        cluster = cluster_name(labels.get(CLUSTER_LABEL, ""))
        subject, dns_names = submission.registered(tx, cluster, AddOnName(addon), SIGNER)
        checks.check_subject(facts, subject, dns_names)
        if profiles.claims_anothers(subject, cluster):
            raise ForbiddenError(
                f'add-on "{addon}" of cluster "{cluster}" is registered under a name that add-ons may not have: '
                "register it under its own names"
            )
        holder = CertificateHolder(cluster=cluster, addon=AddOnName(addon))
        granted = CertificateGrant(Purpose.ADDON, subject, facts.public_key, facts.dns_names, holder, requester)
    else:
        cluster, agent = checks.claimed_agent(facts)
        if labels.get(CLUSTER_LABEL, cluster) != cluster:
            raise InvalidError(f'the label {CLUSTER_LABEL} and the subject name different clusters ("{cluster}")')
        credential = _credential(tx, request, requester, cluster)
        holder = CertificateHolder(cluster=cluster, agent=agent, credential=credential)
        granted = CertificateGrant(Purpose.AGENT, agent_subject(cluster, agent), facts.public_key, (), holder, requester)
    if requester is not None and requester.cluster not in (None, cluster):
        raise ForbiddenError(
            f'the requester has a certificate of cluster "{requester.cluster}", and the request is for cluster "{cluster}"'
        )
    checks.check_key_is_new(cluster, tx.certificates.of_key(facts.key_hash))
    return granted


def _requester(tx: Transaction, request: Document) -> CertificateRecord | None:
    """Return the record of the requester's certificate; None: no certificate. Raises ForbiddenError if it was revoked."""
    serial = csr_rules.requester_serial(request)
    if serial is None:
        return None
    record = tx.certificates.by_serial(serial)
    if record is None or record.revoked_at is not None:
        raise ForbiddenError("the certificate of the requester was revoked")
    return record


def _credential(
    tx: Transaction, request: Document, requester: CertificateRecord | None, cluster: ClusterName
) -> CredentialId | None:
    """Return the requester's bootstrap credential, or the credential with which the agent joined; None: no credential.

    Raises ForbiddenError if the requester's bootstrap credential is for another cluster, was revoked, or is older than a
    revocation of the cluster.
    """
    if requester is not None and requester.purpose is not Purpose.BOOTSTRAP:
        return requester.credential
    credential = requester.credential if requester is not None else csr_rules.bootstrap_credential(request)
    if credential is None:
        return None
    record = tx.credentials.by_id(credential)
    if record is None or record.revoked_at is not None:
        raise ForbiddenError("the bootstrap credential of the requester was revoked")
    check_name(record, cluster)
    credential_uses.check_cluster_revocation(tx, cluster, record.created_at)
    return credential
