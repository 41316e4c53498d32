"""Use cases about bootstrap credentials: made once, spent once per cluster name."""

import secrets
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import uuid4

from hub.domain import credential as rules
from hub.domain.certificate import Holder, IssuedCertificate, Lifetimes, Profile, Purpose
from hub.domain.credential import CredentialRecord
from hub.ports import Issuer, Transaction
from hub.services import certificates
from machinery.errors import ForbiddenError, InvalidError, NotFoundError
from machinery.identity import ClusterName, CredentialId, bootstrap_subject


def create(
    tx: Transaction,
    *,
    cluster: ClusterName | None,
    uses: int | None,
    lifetime: timedelta | None,
    public_key: bytes,
    issuer: Issuer,
    lifetimes: Lifetimes,
    actor: str,
) -> tuple[CredentialRecord, IssuedCertificate]:
    """Records a credential and signs its client certificate over `public_key` (DER SubjectPublicKeyInfo).

    Raises InvalidError when uses or lifetime are not positive, or the key is known already.
    """
    record = _new(tx, Terms(cluster, uses, lifetime if lifetime is not None else lifetimes.bootstrap), actor)
    if tx.certificates.of_key(certificates.key_hash(public_key)):
        raise InvalidError("the key of the certificate request is already in use: make a new key for this credential")
    tx.credentials.add(record)
    profile = Profile(
        Purpose.BOOTSTRAP, bootstrap_subject(record.id), public_key, tx.now - lifetimes.backdate, record.expires_at
    )
    return record, certificates.sign(tx, issuer, profile, Holder(cluster=cluster, credential=record.id))


@dataclass(frozen=True, slots=True)
class Terms:
    """What a credential is good for; see `CredentialRecord`."""

    cluster: ClusterName | None
    uses: int | None
    lifetime: timedelta


def create_token(tx: Transaction, terms: Terms, actor: str) -> tuple[CredentialRecord, str]:
    """Records a credential and returns its bearer token, which nobody can tell again. Raises InvalidError."""
    record = _new(tx, terms, actor)
    secret = "".join(secrets.choice(rules.TOKEN_ALPHABET) for _ in range(rules.TOKEN_SECRET_LENGTH))
    token = rules.token_of(record.id, secret)
    record = replace(record, token_hash=rules.token_hash(token))
    tx.credentials.add(record)
    return record, token


def _new(tx: Transaction, terms: Terms, actor: str) -> CredentialRecord:
    if terms.lifetime <= timedelta() or (terms.uses is not None and terms.uses < 1):
        raise InvalidError("a bootstrap credential needs a lifetime above zero and at least one use")
    return CredentialRecord(
        id=CredentialId(uuid4().hex[:16]),
        cluster=terms.cluster,
        uses=terms.uses,
        created_at=tx.now,
        expires_at=tx.now + terms.lifetime,
        created_by=actor,
    )


def check(tx: Transaction, credential: CredentialId, cluster: ClusterName) -> CredentialRecord:
    """The credential, when it may act for `cluster`. Raises ForbiddenError with what is wrong: expired, used up, another's."""
    return _checked(tx, credential, cluster)[0]


def admit(tx: Transaction, credential: CredentialId, cluster: ClusterName) -> None:
    """Spends a use for `cluster`, once per name. Raises ForbiddenError."""
    _, known = _checked(tx, credential, cluster)
    if not known:
        tx.credentials.admit(credential, cluster, tx.now)


def _checked(tx: Transaction, credential: CredentialId, cluster: ClusterName) -> tuple[CredentialRecord, bool]:
    """The credential, and whether it has admitted this name before."""
    record = tx.credentials.by_id(credential)
    if record is None:
        raise ForbiddenError("this bootstrap credential is not known here: have a new bootstrap kubeconfig made")
    known = tx.credentials.has_admitted(credential, cluster)
    used_up = not known and record.uses is not None and tx.credentials.spent(credential) >= record.uses
    rules.check(record, cluster, tx.now, used_up=used_up)
    return record, known


def revoke(tx: Transaction, credential: CredentialId) -> None:
    """Ends a credential and its certificate. Raises NotFoundError."""
    if tx.credentials.by_id(credential) is None:
        raise NotFoundError(f'bootstrap credential "{credential}" not found')
    tx.credentials.revoke(credential, tx.now)
    serials = [record.serial for record in tx.certificates.of_credential(credential) if record.revoked_at is None]
    tx.certificates.revoke(serials, tx.now, "CredentialRevoked")
