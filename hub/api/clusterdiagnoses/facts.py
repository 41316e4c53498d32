"""Input and findings of a diagnosis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from hub.api.bootstrapcredentials import CredentialPhase, CredentialRecord
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.hubreplicas import AgentSession, Replica
from hub.api.liveness import Brake, LastBeat
from machinery.durations import format_duration
from machinery.identity import ClusterName
from machinery.meta.objects import Document


class FindingState(StrEnum):
    OK = "Ok"
    WAITING = "Waiting"
    """No fault: a decision or a start is pending."""
    WARNING = "Warning"
    """A problem with which the cluster can still be Available."""
    BROKEN = "Broken"


@dataclass(frozen=True, slots=True)
class DiagnosisFinding:
    """Result of one step. `reason`: one word for programs; `said`: what the step found; `advice`: what to do."""

    step: str
    state: FindingState
    reason: str
    said: str
    advice: str = ""


StepResult = tuple[FindingState, str, str, str]
"""State, reason, text and advice of a finding."""


@dataclass(frozen=True, slots=True)
class LeaderLease:
    """The current record of the leader lock."""

    holder: str
    """The holder's name; "" if the lock has no holder."""
    renewed_at: datetime
    lease: timedelta


@dataclass(frozen=True, slots=True)
class CredentialState:
    record: CredentialRecord
    phase: CredentialPhase


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """All records about one cluster at one instant of the database's time."""

    name: ClusterName
    now: datetime
    cluster: Document | None = None
    """The ManagedCluster; None: the hub has no cluster of this name."""
    offers: Sequence[CredentialState] = ()
    requests: Sequence[Document] = ()
    """Certificate requests of the cluster's agents, not of add-ons; newest last."""
    records: Sequence[CertificateRecord] = ()
    beat: LastBeat | None = None
    sessions: Sequence[AgentSession] = ()
    replicas: Mapping[str, Replica] | None = None
    """The replicas by name; None: the hub has no records of replicas."""
    lead: LeaderLease | None = None
    addons: Sequence[Document] = ()
    brake: Brake = field(default_factory=Brake)
    falls: int = 0
    """How often the cluster stopped being Available within the last hour."""

    @property
    def document(self) -> Document:
        """The ManagedCluster; empty if the hub has no cluster of this name."""
        return self.cluster or {}

    def of_purpose(self, purpose: Purpose) -> Sequence[CertificateRecord]:
        """Return the cluster's certificate records with this purpose, oldest first."""
        chosen = [record for record in self.records if record.purpose is purpose]
        return sorted(chosen, key=lambda record: (record.issued_at, record.serial))

    def ago(self, moment: datetime) -> str:
        return f"{duration_text(self.now - moment)} ago"


def duration_text(duration: timedelta) -> str:
    """Return the duration as text, in whole seconds; durations of two days and more in whole days."""
    if duration >= timedelta(days=2):
        return f"{duration.days}d"
    return format_duration(timedelta(seconds=max(0, int(duration.total_seconds()))))
