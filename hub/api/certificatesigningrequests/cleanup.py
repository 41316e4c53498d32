"""When a CertificateSigningRequest goes, as Kubernetes' controller-manager has it go.

Issued, denied and failed ones an hour after that, and issued ones at the latest with their certificate; what nobody decided,
and what was approved and never signed, after a day.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from hub.api.certificatesigningrequests.request import APPROVED, RequestPhase, created_at, finished_at, phase
from hub.api.meta import document as doc
from hub.api.meta.change import Document
from machinery.meta.timestamps import parse_time


@dataclass(frozen=True, slots=True)
class Ends:
    """How long requests are kept when they are finished, and when nothing becomes of them."""

    finished: timedelta = timedelta(hours=1)
    pending: timedelta = timedelta(hours=24)


def goes_at(request: Document, ends: Ends, not_after: datetime | None) -> datetime:
    """When it goes. `not_after`: the end of the certificate that was issued."""
    finished = finished_at(request)
    if finished is None:
        return _waits_since(request) + ends.pending
    at = finished + ends.finished
    return at if not_after is None else min(at, not_after)


def _waits_since(request: Document) -> datetime:
    """The creation of an undecided request; the approval of one that nobody signs."""
    moments = _moments(request, (APPROVED,)) if phase(request) is RequestPhase.APPROVED else []
    return max(moments, default=created_at(request))


def _moments(request: Document, types: Collection[str]) -> list[datetime]:
    told = [entry for entry in doc.conditions(request) if entry.get("type") in types]
    moments = [entry.get("lastUpdateTime") or entry.get("lastTransitionTime") for entry in told]
    return [parse_time(str(moment)) for moment in moments if moment]
