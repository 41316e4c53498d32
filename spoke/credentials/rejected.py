"""Findings from hubs about stored credentials that look valid; each one is used once, except a revocation."""

from machinery.identity import HubId
from spoke.domain.credential import CredentialFinding, Flaw, StoredCredential


class RejectedCredentials:
    """At most one finding per hub."""

    def __init__(self) -> None:
        self._all: dict[HubId, CredentialFinding] = {}

    def cast(self, hub: HubId, finding: CredentialFinding) -> None:
        self._all[hub] = finding

    def take(self, hub: HubId, stored: StoredCredential) -> CredentialFinding | None:
        """Remove and return the finding about this credential; a lasting one (revocation) stays."""
        doubt = self._all.pop(hub, None)
        if doubt is not None and doubt.lasts(stored):
            self._all[hub] = doubt
        return doubt

    def is_revoked(self, hub: HubId) -> bool:
        doubt = self._all.get(hub)
        return doubt is not None and doubt.flaw is Flaw.REVOKED
