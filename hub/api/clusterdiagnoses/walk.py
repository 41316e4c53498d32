"""The way in its order. What lies behind a break that makes it pointless is not looked at."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hub.api.clusterdiagnoses import joining, reporting
from hub.api.clusterdiagnoses.facts import ClusterFacts, DiagnosisFinding, FindingState
from hub.api.managedclusters import cluster as rules
from machinery.meta import conditions

Look = Callable[[ClusterFacts], DiagnosisFinding | None]

NOT_HERE = frozenset(
    ("NoBootstrapCredential", "NotComeYet", *(f"BootstrapCredential{ended}" for ended in ("Expired", "UsedUp", "Revoked")))
)
"""Nothing has ever come from such a cluster."""

WAY: Sequence[tuple[Look, frozenset[str]]] = (
    (reporting.led, frozenset()),
    (joining.known, NOT_HERE),
    (joining.doubled, frozenset()),
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
"""Each look, and the reasons after which there is nothing more to see ("*": whatever it finds)."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, in the order of the way."""

    findings: Sequence[DiagnosisFinding]
    available: str
    """The condition's status; "": there is none."""

    @property
    def cause(self) -> DiagnosisFinding | None:
        """The first on the way that is not well; None: nothing stands in it."""
        return next(
            (finding for finding in self.findings if finding.state in (FindingState.BROKEN, FindingState.WAITING)), None
        )

    @property
    def is_well(self) -> bool:
        return self.cause is None and self.available == conditions.TRUE


def diagnose(facts: ClusterFacts) -> Diagnosis:
    """Walks the way."""
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
    """All is well, and yet it does not read Available: for a moment that is so."""
    available = rules.availability(facts.document)
    said = f"it reads {available.status} ({available.reason})" if available else "it has not said yet whether it is available"
    advice = f"its agent tells with its next report; look again in a moment, and then at hubctl describe cluster {facts.name}"
    return DiagnosisFinding(
        "availability", FindingState.WAITING, "NotToldYet", f"nothing stands in the way, but {said}", advice
    )
