"""Later steps of a diagnosis: leader, owner, session, beats, clock, API server, add-ons, brake and flapping."""

from datetime import datetime

from hub.api.clusterdiagnoses.facts import ClusterFacts, DiagnosisFinding, FindingState, whole
from hub.api.liveness import GRACE_FACTOR, grace
from hub.api.managedclusters import cluster as rules
from hub.api.meta import document as doc
from machinery.meta import conditions

FLAPS = 3
"""Falls within an hour; the hub's default for flapping."""
LATE = 1.5
"""Lease durations without a beat that cause a warning; an agent sends one beat in each."""
NAMED = 5
"""Largest number of add-ons that are named."""

_DOCTOR = "run `spoke doctor` there, with the settings of its `spoke run`; it says at which step the way to the hub breaks"


def led(facts: ClusterFacts) -> DiagnosisFinding:
    """Whether a leader exists, which approves, signs and evaluates silence."""
    lead = facts.lead
    if lead is None or not lead.holder:
        said = "no replica leads: nobody signs certificates or judges silence"
        return DiagnosisFinding(
            "hub", FindingState.BROKEN, "NoLeader", said, "look at `hubctl get replicas`, their logs, and `hub doctor`"
        )
    late = facts.now - lead.renewed_at
    # a lock without competitors is not renewed
    if late > lead.lease and not _lives(facts, lead.holder):
        said = f"the leader, {lead.holder}, has not renewed its lease for {whole(late)}: nobody signs or judges silence"
        return DiagnosisFinding(
            "hub", FindingState.BROKEN, "NoLeader", said, f"look at the replica {lead.holder}: its log, its database"
        )
    return DiagnosisFinding("hub", FindingState.OK, "Led", f"the replica {lead.holder} leads")


def owned(facts: ClusterFacts) -> DiagnosisFinding | None:
    """The hub that owns the agent, as it reports."""
    if facts.beat is None or facts.beat.owner is None:
        return None
    owner = facts.beat.owner
    said = (
        f"its agent reports to the hub {owner}, and holds this one in reserve" if owner else "its agent reports to no hub yet"
    )
    advice = "look there; to have it here, on that hub: hubctl move cluster NAME --to THIS-HUB" if owner else _DOCTOR
    return DiagnosisFinding("owner", FindingState.WAITING, "ReportsElsewhere", said, advice)


def session(facts: ClusterFacts) -> DiagnosisFinding:
    """The agent's session and its replica. Agents with the driver `csr` have no session, but send beats."""
    if facts.sessions:
        lost = [each for each in facts.sessions if not _lives(facts, each.replica)]
        message = ", ".join(
            f'agent "{each.agent}" on {each.replica or "this hub"}, {facts.ago(each.at)}' for each in facts.sessions
        )
        if len(lost) == len(facts.sessions):
            said = f"the replica that had its session is lost ({message})"
            return DiagnosisFinding(
                "session", FindingState.BROKEN, "ReplicaLost", said, "the agent goes to another replica by itself; " + _DOCTOR
            )
        return DiagnosisFinding("session", FindingState.OK, "Open", message)
    if _is_fresh(facts) and facts.beat is not None and facts.beat.agent_version is None:
        return DiagnosisFinding("session", FindingState.OK, "NoneNeeded", "none is open; it beats over the Kubernetes API")
    return DiagnosisFinding(
        "session", FindingState.BROKEN, "NoSession", "no agent is connected", f"is the agent running? {_DOCTOR}"
    )


def beats(facts: ClusterFacts) -> DiagnosisFinding | None:
    """None for a cluster that may not report, whose beats do not count."""
    if not rules.is_accepted(facts.document):
        return None
    lease = rules.lease_duration(facts.document)
    at = _last_beat(facts)
    if at is None:
        said = "no beat has ever come"
        advice = "an agent beats as soon as it has a session and is accepted; " + _DOCTOR
        return DiagnosisFinding("beats", FindingState.BROKEN, "NeverBeat", said, advice)
    silent = facts.now - at
    said = f"the last one came {whole(silent)} ago; the lease is {whole(lease)}, the grace {GRACE_FACTOR} of it"
    if silent >= grace(lease):
        advice = "the agent is off, or cannot reach the hub: look whether it runs; " + _DOCTOR
        return DiagnosisFinding("beats", FindingState.BROKEN, "Silent", said, advice)
    if silent > LATE * lease:
        return DiagnosisFinding(
            "beats", FindingState.WARNING, "Late", said, f"it reads Unknown in {whole(grace(lease) - silent)}; {_DOCTOR}"
        )
    return DiagnosisFinding("beats", FindingState.OK, "Beating", said)


def clock(facts: ClusterFacts) -> DiagnosisFinding | None:
    found = conditions.find(doc.conditions(facts.document), conditions.CLOCK_SYNCED)
    if found is None:
        return None
    if found.status == conditions.FALSE:
        advice = "set the clock of the agent's machine (NTP): certificates are judged by it"
        return DiagnosisFinding("clock", FindingState.WARNING, found.reason, found.message, advice)
    return DiagnosisFinding("clock", FindingState.OK, found.reason, found.message)


def api_server(facts: ClusterFacts) -> DiagnosisFinding | None:
    """The agent's verdict on its API server; None without a verdict or without beats."""
    available = rules.availability(facts.document)
    if available is not None and available.status == conditions.FALSE:
        advice = "look at the API server of that cluster: kubectl get --raw '/readyz?verbose' there; the agent is well"
        return DiagnosisFinding("API server", FindingState.BROKEN, available.reason, available.message, advice)
    if available is not None and available.status == conditions.TRUE and _is_fresh(facts):
        return DiagnosisFinding("API server", FindingState.OK, available.reason, "the agent says that it is well")
    return None


def addons(facts: ClusterFacts) -> DiagnosisFinding | None:
    if not facts.addons:
        return None
    ill = [doc.name(addon) for addon in facts.addons if _status(addon) != conditions.TRUE]
    if not ill:
        return DiagnosisFinding("add-ons", FindingState.OK, "Available", f"all {len(facts.addons)} are Available")
    named = ", ".join(ill[:NAMED]) + (f" and {len(ill) - NAMED} more" if ill[NAMED:] else "")
    advice = f"kubectl -n {facts.name} get managedclusteraddons -o yaml; and their agents' leases on the cluster"
    return DiagnosisFinding("add-ons", FindingState.WARNING, "AddOnsNotAvailable", f"not Available: {named}", advice)


def brake(facts: ClusterFacts) -> DiagnosisFinding | None:
    if not facts.brake.holds:
        return None
    said = f"{facts.brake.silent} of {facts.brake.fleet} clusters fell silent at once: taints and removals are held"
    advice = "that many at once are rather the hub's or the network's fault; if not: hubctl release-brake"
    return DiagnosisFinding("brake", FindingState.WARNING, "BrakeHolds", said, advice)


def flaps(facts: ClusterFacts) -> DiagnosisFinding | None:
    if facts.falls < FLAPS:
        return None
    said = f"it ceased to be Available {facts.falls} times within an hour"
    return DiagnosisFinding(
        "flaps", FindingState.WARNING, "Flaps", said, f"hubctl describe cluster {facts.name} shows when and why"
    )


def _last_beat(facts: ClusterFacts) -> datetime | None:
    return facts.beat.at if facts.beat is not None else None


def _is_fresh(facts: ClusterFacts) -> bool:
    at = _last_beat(facts)
    return at is not None and facts.now - at < grace(rules.lease_duration(facts.document))


def _lives(facts: ClusterFacts, name: str) -> bool:
    """Without records of replicas (an earlier release) no replica counts as lost."""
    if not facts.replicas:
        return True
    found = facts.replicas.get(name)
    return found is not None and not found.is_lost(facts.now)


def _status(addon: object) -> str:
    found = conditions.find(doc.conditions(addon), "Available")  # type: ignore[arg-type]
    return found.status if found is not None else conditions.UNKNOWN
