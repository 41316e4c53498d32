"""The parts of an agent that its sessions use, and the errors that end a stay with a hub."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from machinery.errors import MusterError
from machinery.pki import CertificateFacts
from machinery.runtime.clock import OffsetClock
from spoke.bootstraps import BootstrapWatch
from spoke.controllers.addon_registration import AddOnCredentials
from spoke.credentials.owner import OwnerRecord
from spoke.domain.credential import CredentialFinding, Flaw, validity
from spoke.failover.candidates import HubList
from spoke.failover.standby_records import Reserve
from spoke.observability.event_recorder import Announcements
from spoke.observability.progress import AgentProgress
from spoke.options import AgentOptions, World
from spoke.ports import HubLostError, SessionEnd
from spoke.registration.register import Registration
from spoke.session.active_session import SessionSurroundings


class FlawError(MusterError):
    """The credential in use is no longer valid; the agent must register again."""

    reason = "Unauthorized"

    def __init__(self, finding: CredentialFinding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def judge_loss(lost: HubLostError, chain: Sequence[CertificateFacts], now: datetime) -> None:
    """Raises FlawError when the loss, or the hub's time, shows that the credential with this chain is unusable."""
    finding = validity(chain, now)
    if lost.loss is SessionEnd.REVOKED:
        message = f"the hub has revoked the stored credential: {lost.message}"
        finding = CredentialFinding(Flaw.REVOKED, message, chain[0].serial if chain else None)
    elif lost.loss is SessionEnd.UNAUTHENTICATED:
        finding = CredentialFinding(Flaw.REJECTED, f"the hub does not take the stored credential: {lost.message}")
    elif lost.loss is SessionEnd.OUTLIVED:
        finding = CredentialFinding(Flaw.OUTLIVED, lost.message)
    elif lost.loss is SessionEnd.UNRECORDED:
        finding = CredentialFinding(Flaw.UNRECORDED, lost.message)
    elif lost.loss is SessionEnd.FORGOTTEN:
        finding = CredentialFinding(Flaw.REJECTED, f"the hub does not know this cluster: {lost.message}")
    elif finding is None or finding.flaw is not Flaw.EXPIRED:
        return
    raise FlawError(finding) from lost


class LeaveError(Exception):
    """The session must move to another hub."""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """One instance of each per agent."""

    options: AgentOptions
    world: World
    bootstrap: BootstrapWatch
    hubs: HubList
    ownership: OwnerRecord
    reserve: Reserve
    joining: Registration
    surroundings: SessionSurroundings
    hub_clock: OffsetClock
    progress: AgentProgress
    certificates: AddOnCredentials
    announcements: Announcements
