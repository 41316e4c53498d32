"""What a diagnosis looks at, and what it finds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from hub.api.bootstrapcredentials.credential import CredentialPhase, CredentialRecord
from hub.api.certificates.certificate import CertificateRecord, Purpose
from hub.api.hubreplicas.replica import AgentSession, Replica
from hub.api.liveness.brake import Brake
from hub.api.liveness.heartbeat import LastBeat
from hub.api.meta.change import Document
from machinery.durations import format_duration
from machinery.identity import ClusterName


class FindingState(StrEnum):
    """How a step looks."""

    OK = "Ok"
    WAITING = "Waiting"
    """Nothing is wrong: somebody has to decide, or to begin."""
    WARNING = "Warning"
    """It does not keep the cluster from being Available."""
    BROKEN = "Broken"


@dataclass(frozen=True, slots=True)
class DiagnosisFinding:
    """One step of the way. `reason`: one word for machines; `advice`: what to do, where it is not well."""

    step: str
    state: FindingState
    reason: str
    said: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Lead:
    """The lock of the hub's controllers, as its record stands."""

    holder: str
    """"": nobody has it."""
    renewed_at: datetime
    lease: timedelta


@dataclass(frozen=True, slots=True)
class Offer:
    """A bootstrap credential that is for a cluster of this name, and where it stands."""

    record: CredentialRecord
    phase: CredentialPhase


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """All that is on record of one cluster, at one moment of the database's time."""

    name: ClusterName
    now: datetime
    cluster: Document | None = None
    """None: there is none of this name."""
    offers: Sequence[Offer] = ()
    requests: Sequence[Document] = ()
    """Certificate requests of its agents, not of its add-ons; the newest last."""
    records: Sequence[CertificateRecord] = ()
    beat: LastBeat | None = None
    sessions: Sequence[AgentSession] = ()
    replicas: Mapping[str, Replica] | None = None
    """None: the hub knows of none."""
    lead: Lead | None = None
    addons: Sequence[Document] = ()
    brake: Brake = field(default_factory=Brake)
    falls: int = 0
    """How often it ceased to be Available within the last hour."""

    @property
    def document(self) -> Document:
        """Of the cluster; only asked where there is one."""
        return self.cluster or {}

    def of_purpose(self, purpose: Purpose) -> Sequence[CertificateRecord]:
        """The oldest first."""
        chosen = [record for record in self.records if record.purpose is purpose]
        return sorted(chosen, key=lambda record: (record.issued_at, record.serial))

    def ago(self, moment: datetime) -> str:
        return f"{whole(self.now - moment)} ago"


def whole(duration: timedelta) -> str:
    """In words, to the second; of days only days."""
    if duration >= timedelta(days=2):
        return f"{duration.days}d"
    return format_duration(timedelta(seconds=max(0, int(duration.total_seconds()))))
