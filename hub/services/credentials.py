"""Use cases about bootstrap credentials."""

from datetime import timedelta

from hub.domain.certificate import IssuedCertificate, Lifetimes
from hub.domain.credential import CredentialRecord
from hub.ports import Issuer, Transaction
from machinery.identity import ClusterName, CredentialId


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
    """Records a credential and signs its client certificate over `public_key` (DER SubjectPublicKeyInfo)."""
    raise NotImplementedError


def admit(tx: Transaction, credential: CredentialId, cluster: ClusterName) -> None:
    """Spends a use for `cluster`, once per name. Raises ForbiddenError with what is wrong: expired, used up, another's name."""
    raise NotImplementedError


def check(tx: Transaction, credential: CredentialId, cluster: ClusterName) -> CredentialRecord:
    """The credential, when it may act for `cluster`. Raises ForbiddenError."""
    raise NotImplementedError


def revoke(tx: Transaction, credential: CredentialId) -> None:
    """Ends a credential and its certificate. Raises NotFoundError."""
    raise NotImplementedError
