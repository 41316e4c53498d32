"""Bootstrap credentials: who may join, as what, until when, how often.

A credential is a client certificate, or a bearer token `<id>.<secret>` of which only a hash is kept: the secret is random and
long, so that a hash without salt tells nothing.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from machinery.errors import ForbiddenError
from machinery.identity import ClusterName, CredentialId
from machinery.timestamps import format_time


@dataclass(frozen=True, slots=True)
class CredentialRecord:
    """One bootstrap credential; its client certificate's record names it.

    `cluster` binds it to one name; None: any name. `uses` bounds the number of cluster names it may admit; None: unbounded.
    """

    id: CredentialId
    cluster: ClusterName | None
    uses: int | None
    created_at: datetime
    expires_at: datetime
    created_by: str
    revoked_at: datetime | None = None
    token_hash: str | None = None
    """Of a credential that is a token; None: it is a certificate."""


TOKEN_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"  # noqa: S105 - letters, not a secret
TOKEN_SECRET_LENGTH = 32
_TOKEN = re.compile(rf"([0-9a-f]{{16}})\.[a-z0-9]{{{TOKEN_SECRET_LENGTH}}}")


def token_of(credential: CredentialId, secret: str) -> str:
    return f"{credential}.{secret}"


def token_id(token: str) -> CredentialId | None:
    """The credential that a token claims to be; None: it is no bootstrap token."""
    found = _TOKEN.fullmatch(token)
    return None if found is None else CredentialId(found[1])


def token_hash(token: str) -> str:
    """Hex SHA-256."""
    return sha256(token.encode()).hexdigest()


def check(record: CredentialRecord, cluster: ClusterName, now: datetime, *, used_up: bool) -> None:
    """Whether the credential may act for `cluster`. Raises ForbiddenError.

    `used_up`: all uses were spent, on other names than this one; a name that was admitted before costs no use.
    """
    again = "have a new bootstrap kubeconfig made with `hubctl create bootstrap-kubeconfig`"
    if record.revoked_at is not None:
        raise ForbiddenError(f"the bootstrap credential {record.id} is revoked: {again}")
    if now >= record.expires_at:
        raise ForbiddenError(f"the bootstrap credential {record.id} expired at {format_time(record.expires_at)}: {again}")
    if record.cluster is not None and record.cluster != cluster:
        raise ForbiddenError(f'the bootstrap credential {record.id} is for cluster "{record.cluster}", not for "{cluster}"')
    if used_up:
        raise ForbiddenError(
            f"the bootstrap credential {record.id} is used up: its {record.uses} uses were spent on other clusters; {again}"
        )
