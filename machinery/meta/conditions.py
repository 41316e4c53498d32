"""Kubernetes conditions as values, with OCM's types."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from machinery.meta.timestamps import format_time, parse_time

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

HUB_ACCEPTED = "HubAcceptedManagedCluster"
JOINED = "ManagedClusterJoined"
AVAILABLE = "ManagedClusterConditionAvailable"
CLOCK_SYNCED = "ManagedClusterConditionClockSynced"
CERTIFICATE_ROTATED = "ClusterCertificateRotated"
ADDON_AVAILABLE = "Available"


@dataclass(frozen=True, slots=True)
class Condition:
    """One entry of `status.conditions`. `last_transition_time` None: `with_condition` sets it."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: datetime | None = None

    @classmethod
    def from_document(cls, entry: Mapping[str, Any]) -> "Condition":
        moment = entry.get("lastTransitionTime")
        return cls(
            type=str(entry.get("type", "")),
            status=str(entry.get("status", UNKNOWN)),
            reason=str(entry.get("reason", "")),
            message=str(entry.get("message", "")),
            last_transition_time=parse_time(moment) if moment else None,
        )

    def to_document(self) -> dict[str, Any]:
        entry = {"type": self.type, "status": self.status, "reason": self.reason, "message": self.message}
        if self.last_transition_time is not None:
            entry["lastTransitionTime"] = format_time(self.last_transition_time)
        return entry


def find(conditions: Iterable[Mapping[str, Any]], kind: str) -> Condition | None:
    """Return the condition of type `kind`; None if there is none."""
    return next((Condition.from_document(entry) for entry in conditions if entry.get("type") == kind), None)


def with_condition(conditions: Sequence[Mapping[str, Any]], new: Condition, now: datetime) -> list[dict[str, Any]]:
    """Return a copy of `conditions` in which `new` replaces the condition of its type, or is appended.

    The transition time changes to `now` only if the status changes. If nothing changes, the result equals `conditions`, so that
    the caller can skip the write.
    """
    entries = [dict(entry) for entry in conditions]
    for index, entry in enumerate(entries):
        if entry.get("type") != new.type:
            continue
        kept = entry.get("status") == new.status and entry.get("lastTransitionTime")
        moment = parse_time(str(kept)) if kept else now
        stamped = Condition(new.type, new.status, new.reason, new.message, moment)
        entries[index] = {**entry, **stamped.to_document()}
        return entries
    entries.append(Condition(new.type, new.status, new.reason, new.message, now).to_document())
    return entries
