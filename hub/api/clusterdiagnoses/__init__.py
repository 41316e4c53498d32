"""Diagnosis: rules about why a cluster is not Available, as steps over the hub's records, each with advice.

A finding can make later steps pointless; these are skipped.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hub.api.clusterdiagnoses import joining, reporting
from hub.api.clusterdiagnoses.facts import ClusterFacts, DiagnosisFinding, FindingState, Lead, Offer
from hub.api.managedclusters import cluster as rules
from machinery.meta import conditions

__all__ = ["ClusterFacts", "Diagnosis", "DiagnosisFinding", "FindingState", "Lead", "Offer", "diagnose"]

Look = Callable[[ClusterFacts], DiagnosisFinding | None]

NOT_HERE = frozenset(
    ("NoBootstrapCredential", "NotComeYet", *(f"BootstrapCredential{ended}" for ended in ("Expired", "UsedUp", "Revoked")))
)
"""Findings after which no session or beat can exist."""

WAY: Sequence[tuple[Look, frozenset[str]]] = (
    (reporting.led, frozenset()),
    (joining.known, NOT_HERE),
    (joining.duplicated_agents, frozenset()),
    (joining.accepted, frozenset()),
    (joining.requested, frozenset(("*",))),
    (joining.certificate, frozenset(("Revoked", "Expired", "ExpiredRecoverable"))),
    (reporting.owned, frozenset(("ReportsElsewhere",))),
    (reporting.session, frozenset()),
    (reporting.beats, frozenset()),
    (reporting.clock, frozenset()),
    (reporting.api_server, frozenset()),
    (reporting.addons, frozenset()),
    (reporting.brake, frozenset()),
    (reporting.flaps, frozenset()),
)
"""Each step, and the reasons after which the diagnosis ends ("*": any finding)."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, in the order of the steps."""

    findings: Sequence[DiagnosisFinding]
    available: str
    """Status of the condition Available; "" if it is absent."""

    @property
    def cause(self) -> DiagnosisFinding | None:
        """The first finding that is not well; None without one."""
        return next(
            (finding for finding in self.findings if finding.state in (FindingState.BROKEN, FindingState.WAITING)), None
        )

    @property
    def is_well(self) -> bool:
        return self.cause is None and self.available == conditions.TRUE


def diagnose(facts: ClusterFacts) -> Diagnosis:
    """Run all steps."""
    available = rules.availability(facts.document)
    found = tuple(_walk(facts))
    diagnosis = Diagnosis(found, available.status if available else "")
    if diagnosis.cause is not None or diagnosis.available == conditions.TRUE:
        return diagnosis
    return Diagnosis((*found, _not_told(facts)), diagnosis.available)


def _walk(facts: ClusterFacts) -> Iterator[DiagnosisFinding]:
    for look, ends in WAY:
        finding = look(facts)
        if finding is None:
            continue
        yield finding
        if finding.reason in ends or "*" in ends:
            return


def _not_told(facts: ClusterFacts) -> DiagnosisFinding:
    """Every step is well, but Available is not True yet, which is possible for a moment."""
    available = rules.availability(facts.document)
    said = f"it reads {available.status} ({available.reason})" if available else "it has not said yet whether it is available"
    advice = f"its agent tells with its next report; look again in a moment, and then at hubctl describe cluster {facts.name}"
    return DiagnosisFinding(
        "availability", FindingState.WAITING, "NotToldYet", f"nothing stands in the way, but {said}", advice
    )
