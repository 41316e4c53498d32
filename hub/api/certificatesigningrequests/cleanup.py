"""Removal times of CertificateSigningRequests, as in Kubernetes' controller-manager.

Issued, denied and failed requests are removed an hour after that, issued ones at the latest with their certificate's end.
Requests without a decision, and approved ones without a signature, are removed after a day.
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
    """Retention of finished requests, and of requests that never finish."""

    finished: timedelta = timedelta(hours=1)
    pending: timedelta = timedelta(hours=24)


def goes_at(request: Document, ends: Ends, not_after: datetime | None) -> datetime:
    """Removal time. `not_after`: end of the issued certificate."""
    finished = finished_at(request)
    if finished is None:
        return _waits_since(request) + ends.pending
    at = finished + ends.finished
    return at if not_after is None else min(at, not_after)


def _waits_since(request: Document) -> datetime:
    """Creation of an undecided request; approval of an unsigned one."""
    moments = _moments(request, (APPROVED,)) if phase(request) is RequestPhase.APPROVED else []
    return max(moments, default=created_at(request))


def _moments(request: Document, types: Collection[str]) -> list[datetime]:
    told = [entry for entry in doc.conditions(request) if entry.get("type") in types]
    moments = [entry.get("lastUpdateTime") or entry.get("lastTransitionTime") for entry in told]
    return [parse_time(str(moment)) for moment in moments if moment]
