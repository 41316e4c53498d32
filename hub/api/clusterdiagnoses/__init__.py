"""Diagnosis of a cluster that is not Available. Each step examines records of the hub and gives advice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hub.api.clusterdiagnoses import steps
from hub.api.clusterdiagnoses.facts import (
    ClusterFacts,
    CredentialState,
    DiagnosisFinding,
    FindingState,
    LeaderLease,
    StepResult,
)
from hub.api.managedclusters import cluster as cluster_rules
from machinery.meta import conditions

__all__ = ["ClusterFacts", "CredentialState", "Diagnosis", "DiagnosisFinding", "FindingState", "LeaderLease", "diagnose"]

NEVER_REGISTERED = frozenset(
    (
        "NoBootstrapCredential",
        "NotRegisteredYet",
        *(f"BootstrapCredential{phase}" for phase in ("Expired", "UsedUp", "Revoked")),
    )
)
"""Reasons of findings after which no session or beat can exist."""

STEPS: Sequence[tuple[str, Callable[[ClusterFacts], StepResult | None], frozenset[str]]] = (
    ("hub", steps.leader, frozenset()),
    ("cluster", steps.known, NEVER_REGISTERED),
    ("duplicates", steps.duplicates, frozenset()),
    ("acceptance", steps.accepted, frozenset()),
    ("request", steps.requested, frozenset(("*",))),
    ("certificate", steps.certificate, frozenset(("Revoked", "Expired", "ExpiredRecoverable"))),
    ("owner", steps.owner, frozenset(("ReportsElsewhere",))),
    ("session", steps.session, frozenset()),
    ("beats", steps.beats, frozenset()),
    ("clock", steps.clock, frozenset()),
    ("API server", steps.api_server, frozenset()),
    ("add-ons", steps.addons, frozenset()),
    ("brake", steps.brake, frozenset()),
    ("flaps", steps.flaps, frozenset()),
)
"""The name and the function of each step, and the reasons after which the diagnosis ends ("*": any finding)."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, in the order of the steps."""

    findings: Sequence[DiagnosisFinding]
    available: str
    """Status of the condition Available; "" if it is absent."""

    @property
    def cause(self) -> DiagnosisFinding | None:
        """The first finding that is Broken or Waiting; None if there is none."""
        return next((each for each in self.findings if each.state in (FindingState.BROKEN, FindingState.WAITING)), None)

    @property
    def is_well(self) -> bool:
        return self.cause is None and self.available == conditions.TRUE


def diagnose(facts: ClusterFacts) -> Diagnosis:
    """Run the steps until one ends the diagnosis.

    If no step finds a cause and the cluster is not Available, which is normal for a moment, add a finding.
    """
    available, found = cluster_rules.availability(facts.document), list[DiagnosisFinding]()
    for step, run, ends in STEPS:
        result = run(facts)
        if result is not None:
            found.append(DiagnosisFinding(step, *result))
            if found[-1].reason in ends or "*" in ends:
                break
    diagnosis = Diagnosis(found, available.status if available else "")
    if diagnosis.cause is None and not diagnosis.is_well:
        state = f"is {available.status} ({available.reason})" if available else "is absent"
        said = f"no step found a cause, but the condition Available {state}"
        advice = f"wait for the agent's next report; if that changes nothing: hubctl describe cluster {facts.name}"
        found.append(DiagnosisFinding("availability", FindingState.WAITING, "NotReportedYet", said, advice))
    return diagnosis
