"""Checks the agent's stored credential for a hub: by the rules of `spoke.domain.credential`, and by the answers of this hub."""

from collections.abc import Sequence
from datetime import datetime

from spoke.credentials.kubeconfigs import view_stored
from spoke.credentials.slot import Contents
from spoke.domain.credential import CertificateView, CredentialFinding, Flaw, HubEntry, judge, validity
from spoke.domain.names import AgentNames
from spoke.domain.next_step import SessionLoss

_REJECTIONS = {
    SessionLoss.REVOKED: (Flaw.REVOKED, "the hub has revoked the stored credential: "),
    SessionLoss.UNAUTHENTICATED: (Flaw.REJECTED, "the hub does not accept the stored credential: "),
    SessionLoss.OUTLIVED: (Flaw.OUTLIVED, ""),
    SessionLoss.UNRECORDED: (Flaw.UNRECORDED, ""),
    SessionLoss.FORGOTTEN: (Flaw.REJECTED, "the hub does not know this cluster: "),
}


def rejection(
    end: SessionLoss | None, message: str, chain: Sequence[CertificateView], now: datetime
) -> CredentialFinding | None:
    """Return the flaw that a hub's refusal shows; None: no flaw. `end` None: the hub did not answer.

    `now` is the hub's time. A missing answer may mean that `chain` has expired, because TLS does not report this.
    """
    if end in _REJECTIONS:
        flaw, said = _REJECTIONS[end]
        serial = chain[0].serial if flaw is Flaw.REVOKED and chain else None
        return CredentialFinding(flaw, f"{said}{message}", serial)
    finding = validity(chain, now)
    return finding if finding is not None and finding.flaw is Flaw.EXPIRED else None


class CredentialJudge:
    """Checks the credential for one hub. A refusal of the hub applies to the next check only, a revocation to all checks."""

    def __init__(self) -> None:
        self._rejected: CredentialFinding | None = None
        self._revoked: CredentialFinding | None = None

    def reject(self, finding: CredentialFinding) -> None:
        """Record the hub's refusal of a credential that looks valid."""
        self._rejected = finding

    @property
    def is_rejected(self) -> bool:
        """Whether the hub has rejected the credential since the last check."""
        return self._rejected is not None

    @property
    def is_revoked(self) -> bool:
        return self._revoked is not None or (self._rejected is not None and self._rejected.flaw is Flaw.REVOKED)

    def judge(
        self, contents: Contents, hub: HubEntry | None, names: AgentNames, now: datetime, *, is_hub_time: bool
    ) -> CredentialFinding | None:
        """Return the flaw of the stored credential; None: no flaw.

        `is_hub_time`: `now` is this hub's time. Otherwise the clock may be wrong. A flaw that depends on the clock then does
        not count, so that the agent first tries the credential.
        """
        stored = view_stored(contents)
        finding, rejected = judge(stored, hub, names, now), self._rejected
        self._rejected = None
        self._revoked = next((each for each in (rejected, self._revoked) if each is not None and each.applies_to(stored)), None)
        rejected = rejected or self._revoked
        return rejected if finding is None or (finding.about_time and not is_hub_time) else finding
