"""What an agent is made of, as far as its sessions need it; and what ends a stay with a hub."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from machinery.errors import MusterError
from machinery.pki import CertificateFacts
from machinery.runtime.clock import OffsetClock
from spoke.bootstraps import BootstrapWatch
from spoke.controllers.addon_registration import Certificates
from spoke.credentials.owner_record import Ownership
from spoke.domain.credential import Finding, Flaw, validity
from spoke.failover.candidates import HubList
from spoke.failover.standby_records import Reserve
from spoke.observability.event_recorder import Announcements
from spoke.observability.progress import Progress
from spoke.options import Options, World
from spoke.ports import HubLostError, Loss
from spoke.registration.register import Joining
from spoke.session.active_session import Surroundings


class FlawError(MusterError):
    """The credential in use is no good any more: register again."""

    reason = "Unauthorized"

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def judge_loss(lost: HubLostError, chain: Sequence[CertificateFacts], now: datetime) -> None:
    """Raises FlawError when the loss, or the hub's time, says that the credential with this chain is spent."""
    finding = validity(chain, now)
    if lost.loss is Loss.REVOKED:
        message = f"the hub has revoked the stored credential: {lost.message}"
        finding = Finding(Flaw.REVOKED, message, chain[0].serial if chain else None)
    elif lost.loss is Loss.UNAUTHENTICATED:
        finding = Finding(Flaw.REJECTED, f"the hub does not take the stored credential: {lost.message}")
    elif lost.loss is Loss.OUTLIVED:
        finding = Finding(Flaw.OUTLIVED, lost.message)
    elif lost.loss is Loss.UNRECORDED:
        finding = Finding(Flaw.UNRECORDED, lost.message)
    elif lost.loss is Loss.FORGOTTEN:
        finding = Finding(Flaw.REJECTED, f"the hub does not know this cluster: {lost.message}")
    elif finding is None or finding.flaw is not Flaw.EXPIRED:
        return
    raise FlawError(finding) from lost


class LeaveError(Exception):
    """The session is to be elsewhere."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Each of them once per agent."""

    options: Options
    world: World
    bootstrap: BootstrapWatch
    hubs: HubList
    ownership: Ownership
    reserve: Reserve
    joining: Joining
    surroundings: Surroundings
    hub_clock: OffsetClock
    progress: Progress
    certificates: Certificates
    announcements: Announcements
