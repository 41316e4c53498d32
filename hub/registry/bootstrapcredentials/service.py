"""Use cases about bootstrap credentials: creation and revocation. For their uses, see `credential_uses`."""

import secrets
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import uuid4

from hub.api import bootstrapcredentials as credential_rules, certificatesigningrequests as requests
from hub.api.bootstrapcredentials import UNBOUND, CredentialBounds, CredentialRecord
from hub.api.certificates import CertificateHolder, IssuedCertificate, Lifetimes, Profile, Purpose
from hub.api.certificatesigningrequests import RequestPhase
from hub.api.meta.change import REQUESTS
from hub.api.revocations import CREDENTIAL_REVOKED as REVOKED
from hub.ports import Transaction
from hub.ports.identities import Issuer
from hub.registry import certificates
from hub.registry.certificatesigningrequests import credential_uses, service as request_objects
from machinery import pki
from machinery.errors import InvalidError, NotFoundError
from machinery.identity import ClusterName, CredentialId, bootstrap_subject
from machinery.meta.objects import Key

HUB = "system:hub"


@dataclass(frozen=True, slots=True)
class CredentialTerms:
    """Terms of a new credential; see `CredentialRecord`."""

    cluster: ClusterName | None
    uses: int | None
    lifetime: timedelta
    bounds: CredentialBounds = UNBOUND


def create(
    tx: Transaction, terms: CredentialTerms, public_key: bytes, issuer: Issuer, *, lifetimes: Lifetimes, actor: str
) -> tuple[CredentialRecord, IssuedCertificate]:
    """Record a credential and sign its client certificate over `public_key` (DER SubjectPublicKeyInfo).

    Raises InvalidError if uses or lifetime are not positive, or the hub has already signed a certificate for the key.
    """
    record = _new(tx, terms, actor)
    if tx.certificates.of_key(pki.key_hash(public_key)):
        raise InvalidError("the key of the certificate request is already used: create a new key for this credential")
    tx.credentials.add(record)
    profile = Profile(
        Purpose.BOOTSTRAP, bootstrap_subject(record.id), public_key, tx.now - lifetimes.backdate, record.expires_at
    )
    return record, certificates.sign(tx, issuer, profile, CertificateHolder(cluster=terms.cluster, credential=record.id))


def create_token(tx: Transaction, terms: CredentialTerms, actor: str) -> tuple[CredentialRecord, str]:
    """Record a credential. Returns it with its bearer token, of which only the hash is stored. Raises InvalidError."""
    record = _new(tx, terms, actor)
    secret = "".join(secrets.choice(credential_rules.TOKEN_ALPHABET) for _ in range(credential_rules.TOKEN_SECRET_LENGTH))
    token = credential_rules.token_of(record.id, secret)
    record = replace(record, token_hash=credential_rules.token_hash(token))
    tx.credentials.add(record)
    return record, token


def _new(tx: Transaction, terms: CredentialTerms, actor: str) -> CredentialRecord:
    if terms.lifetime <= timedelta() or (terms.uses is not None and terms.uses < 1):
        raise InvalidError("a bootstrap credential needs a lifetime above zero and at least one use")
    revoked_at = credential_uses.cluster_revoked_at(tx, terms.cluster) if terms.cluster is not None else None
    return CredentialRecord(
        id=CredentialId(uuid4().hex[:16]),
        cluster=terms.cluster,
        uses=terms.uses,
        created_at=tx.now if revoked_at is None else max(tx.now, revoked_at + timedelta(microseconds=1)),  # for any clock
        expires_at=tx.now + terms.lifetime,
        created_by=actor,
        bounds=terms.bounds,
    )


def revoke(tx: Transaction, credential: CredentialId, actor: str = HUB, reason: str = "") -> CredentialRecord:
    """Revoke a credential, close its holders' streams and watches, and deny its undecided requests. Raises NotFoundError.

    An earlier revocation stays as it is. Agents that joined with the credential keep their certificates.
    """
    record = tx.credentials.by_id(credential)
    if record is None:
        raise NotFoundError(f'bootstrap credential "{credential}" not found')
    tx.credentials.revoke(credential, tx.now, by=actor, reason=reason)
    if reason == credential_rules.DELETED:
        tx.credentials.hide(credential)
    serials = [one.serial for one in tx.certificates.of_credential(credential) if one.revoked_at is None]
    for use in tx.credentials.uses(credential):
        stored = tx.objects.get(REQUESTS, Key("", use.request)) if use.issued_at is None else None
        if stored is not None and requests.phase(stored.document) is RequestPhase.PENDING:
            message = f"The bootstrap credential {credential} of this request was revoked."
            request_objects.decide(tx, use.request, approve=False, reason=REVOKED, message=message, actor=actor)
    if serials:
        tx.certificates.revoke(serials, tx.now, REVOKED)
    return tx.credentials.by_id(credential) or record


def revoke_of_account(tx: Transaction, account: str, actor: str, reason: str) -> None:
    """Revoke the credentials that TokenRequests of a ServiceAccount have created. `account`: its uid."""
    for record in tx.credentials.all():
        if record.bounds.account == account and record.revoked_at is None:
            revoke(tx, record.id, actor, reason)
