"""Bootstrap credentials: who may join, as what, until when, how often."""

from dataclasses import dataclass
from datetime import datetime

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
