"""Bootstrap credentials: who may join, as what, until when, how often."""

from dataclasses import dataclass
from datetime import datetime

from machinery.identity import ClusterName, CredentialId


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
