"""Why a stored credential is passed over once, though it looks good: registering is tried, then the credential again."""

from machinery.identity import HubId
from spoke.domain.credential import CredentialFinding, Flaw, StoredCredential


class RejectedCredentials:
    """One at most of each hub's credential."""

    def __init__(self) -> None:
        self._all: dict[HubId, CredentialFinding] = {}

    def cast(self, hub: HubId, finding: CredentialFinding) -> None:
        self._all[hub] = finding

    def take(self, hub: HubId, stored: StoredCredential) -> CredentialFinding | None:
        """The doubt about this credential, which is over by that; but one that lasts stays, whatever becomes of registering."""
        doubt = self._all.pop(hub, None)
        if doubt is not None and doubt.lasts(stored):
            self._all[hub] = doubt
        return doubt

    def is_revoked(self, hub: HubId) -> bool:
        doubt = self._all.get(hub)
        return doubt is not None and doubt.flaw is Flaw.REVOKED
