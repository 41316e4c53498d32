"""Steps of a diagnosis. Each returns state, reason, message and advice, or None if it does not apply."""

from datetime import timedelta

from hub.api.bootstrapcredentials import CredentialPhase
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests import RequestPhase, state
from hub.api.clusterdiagnoses.facts import ClusterFacts, FindingState, StepResult, duration_text
from hub.api.liveness import GRACE_FACTOR, grace
from hub.api.managedclusters import cluster as cluster_rules, duplicates as duplicate_rules
from hub.api.managedclusters.removal import DELETING
from hub.api.meta import document as doc
from hub.api.revocations import CLUSTER_REBUILT
from machinery.meta import conditions
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time, parse_time

OK, WAITING, WARNING, BROKEN = FindingState.OK, FindingState.WAITING, FindingState.WARNING, FindingState.BROKEN
SIGNED_WITHIN = timedelta(seconds=30)
"""An approved request that is older and not signed is a fault; normally the leader signs a request immediately."""
ENDS_SOON = 0.1
"""Remaining share of a certificate's validity below which a warning is due; agents renew much earlier."""
FLAPS = 3
"""Number of losses of availability within an hour that causes a warning. Equal to the hub's default for flapping."""
LATE = 1.5
"""A warning is due after this number of lease durations without a beat. An agent sends at least one beat per lease duration."""
NAMED = 5
"""Largest number of add-ons in a message."""
_DOCTOR = "run `spoke doctor` on the agent's machine, with the settings of `spoke run`, to check the connection to the hub"


def leader(facts: ClusterFacts) -> StepResult:
    """Check that a leader exists. Only the leader approves, signs and evaluates silence."""
    lead = facts.lead
    effect = "no certificate is signed, and no cluster becomes Unknown"
    if lead is None or not lead.holder:
        return (
            BROKEN,
            "NoLeader",
            f"no replica is the leader: {effect}",
            "see `hubctl get replicas`, their logs, and `hub doctor`",
        )
    late = facts.now - lead.renewed_at
    # a lock without competitors is not renewed
    if late > lead.lease and not _lives(facts, lead.holder):
        said = f"the leader, {lead.holder}, has not renewed its lease for {duration_text(late)}: {effect}"
        return BROKEN, "NoLeader", said, f"see the log of the replica {lead.holder}, and check its database"
    return OK, "Led", f"the replica {lead.holder} is the leader", ""


def known(facts: ClusterFacts) -> StepResult:
    """Check that the cluster exists and is not being deleted."""
    if facts.cluster is None:
        return _never_registered(facts, f'no cluster "{facts.name}" has registered at this hub')
    metadata = doc.mapping(facts.cluster, "metadata")
    if not doc.is_deleting(facts.cluster):
        return OK, "Known", f"known since {metadata.get('creationTimestamp') or ''}", ""
    deleting = conditions.find(doc.conditions(facts.cluster), DELETING)
    why = f": {deleting.message}" if deleting is not None and deleting.message else ""
    held = ", ".join(map(str, metadata.get("finalizers") or ())) or "nothing"
    said = f"its deletion began at {metadata.get('deletionTimestamp')}; finalizers: {held}{why}"
    advice = f"wait, delete its remaining objects, or end the deletion with `hubctl delete cluster {facts.name} --force`"
    return BROKEN, "Deleting", said, advice


def duplicates(facts: ClusterFacts) -> StepResult | None:
    """Check whether several agents or clusters use this name. A refused second cluster does not affect the first cluster."""
    found = conditions.find(doc.conditions(facts.document), cluster_rules.DUPLICATED)
    if found is None or found.status != conditions.TRUE:
        return None
    advice = {
        duplicate_rules.TWO_AGENTS: f"stop all agents of this cluster but one, or: hubctl accept {facts.name} --agent ID",
        duplicate_rules.ANOTHER_CLUSTER: f"give the other cluster another name, or: hubctl accept {facts.name} --rebuilt",
    }
    state = BROKEN if found.reason == duplicate_rules.TWO_AGENTS else WARNING
    return state, found.reason, found.message, advice.get(found.reason, "")


def accepted(facts: ClusterFacts) -> StepResult:
    if cluster_rules.is_accepted(facts.document):
        return OK, "Accepted", cluster_rules.accepted_condition(facts.document).message, ""
    if cluster_rules.is_denied(facts.document):
        reason = cluster_rules.denial_of(facts.document)
        message = f"an operator denied it{f' ({reason})' if reason else ''}, so it may not report"
        return BROKEN, "Denied", message, f"hubctl accept {facts.name}"
    return WAITING, "NotAccepted", "it is not accepted yet", f"hubctl accept {facts.name}"


def requested(facts: ClusterFacts) -> StepResult | None:
    """Examine the newest CSR. Return None if a certificate is valid, or if no CSR is newer than the last certificate."""
    if _valid_certificate(facts) is not None:
        return None
    before = facts.of_purpose(Purpose.AGENT)
    asked = [request for request in facts.requests if not before or parse_time(_created(request)) > before[-1].issued_at]
    if not asked:
        return None if before else _never_registered(facts, "its agent has requested no certificate")
    request = asked[-1]
    name, status = doc.name(request), state(request)
    match status.phase:
        case RequestPhase.PENDING:
            said = f"the certificate request {name} has waited for a decision since {_created(request)}"
            return WAITING, "NotApproved", said, f"hubctl certificate approve {name}"
        case RequestPhase.DENIED | RequestPhase.FAILED:
            why = ": ".join(part for part in (status.reason, status.message) if part)
            ended = "was denied" if status.phase is RequestPhase.DENIED else "failed"
            advice = "while its bootstrap credential is valid, the agent requests another one: approve it (hubctl get csr)"
            return BROKEN, f"Request{status.phase}", f"the certificate request {name} {ended} ({why})", advice
        case RequestPhase.APPROVED:
            late = facts.now - parse_time(_created(request)) > SIGNED_WITHIN
            advice = "the leader signs: see `hubctl get leader`, its log, and `hub doctor` on its machine" if late else ""
            said = f"the certificate request {name} is approved and not signed yet"
            return BROKEN if late else WAITING, "NotSigned", said, advice
    return None


def certificate(facts: ClusterFacts) -> StepResult | None:
    """Examine the newest certificate of the cluster's agents. Return None if none was ever issued."""
    newest, issued = _valid_certificate(facts), facts.of_purpose(Purpose.AGENT)
    if newest is not None:
        left, life = newest.not_after - facts.now, newest.not_after - newest.not_before
        until = f"{format_time(newest.not_after)} (in {duration_text(left)})"
        said = f'agent "{newest.agent}", serial {newest.serial:x}, until {until}'
        if left >= ENDS_SOON * life:
            return OK, "Good", said, ""
        advice = f"the agent should have renewed it: see its log, and pending requests (hubctl get csr); {_DOCTOR}"
        return WARNING, "EndsSoon", said, advice
    if not issued:
        return None
    last = issued[-1]
    again = f"hubctl create bootstrap-kubeconfig --cluster {facts.name}, and give it to the agent, which then registers again"
    if last.revoked_at is not None:
        why = f" ({last.revoked_reason})" if last.revoked_reason else ""
        said = f"the certificate with serial {last.serial:x} was revoked at {format_time(last.revoked_at)}{why}"
        if last.revoked_reason == CLUSTER_REBUILT:
            again = "another cluster has the name now; register the former one under another name"
        return BROKEN, "Revoked", said, again
    said = f"the certificate with serial {last.serial:x} expired at {format_time(last.not_after)}, {facts.ago(last.not_after)}"
    recovery = next((record for record in facts.of_purpose(Purpose.RECOVERY)[::-1] if record.is_open(facts.now)), None)
    if recovery is None:
        return BROKEN, "Expired", f"{said}, and its recovery certificate too", again
    said += f"; the agent can return with its recovery certificate until {format_time(recovery.not_after)}"
    return BROKEN, "ExpiredRecoverable", said, f"start the agent; if it runs, {_DOCTOR}"


def owner(facts: ClusterFacts) -> StepResult | None:
    """Examine which hub owns the agent, as the agent reports. Return None if it reports no other hub."""
    if facts.beat is None or facts.beat.owner is None:
        return None
    if not (named := facts.beat.owner):
        return WAITING, "ReportsElsewhere", "its agent reports to no hub yet", _DOCTOR
    said = f"its agent reports to the hub {named}; this one is a standby hub"
    advice = f"see the cluster there; to move it here, run on that hub: hubctl move cluster {facts.name} --to THIS-HUB"
    return WAITING, "ReportsElsewhere", said, advice


def session(facts: ClusterFacts) -> StepResult:
    """Examine the agent's session and its replica. Agents with the driver `csr` have no session, but send beats."""
    if facts.sessions:
        said = ", ".join(
            f'agent "{each.agent}" on {each.replica or "this hub"}, {facts.ago(each.at)}' for each in facts.sessions
        )
        if any(_lives(facts, each.replica) for each in facts.sessions):
            return OK, "Open", said, ""
        said = f"the replica that had its session is lost ({said})"
        return BROKEN, "ReplicaLost", said, f"the agent connects to another replica automatically; {_DOCTOR}"
    if _is_fresh(facts) and facts.beat is not None and facts.beat.agent_version is None:
        return OK, "NoneNeeded", "none is open; the agent sends beats over the Kubernetes API", ""
    return BROKEN, "NoSession", "no agent is connected", f"check that the agent runs; {_DOCTOR}"


def beats(facts: ClusterFacts) -> StepResult | None:
    """Examine the age of the last beat. Return None for a cluster that may not report, because its beats do not count."""
    if not cluster_rules.is_accepted(facts.document):
        return None
    lease = cluster_rules.lease_duration(facts.document)
    if facts.beat is None or facts.beat.at is None:
        advice = f"an agent sends beats as soon as it has a session and its cluster is accepted; {_DOCTOR}"
        return BROKEN, "NeverBeat", "the hub has never received a beat", advice
    silent = facts.now - facts.beat.at
    limits = f"the lease duration is {duration_text(lease)}, the grace {GRACE_FACTOR} times that"
    said = f"the last one arrived {duration_text(silent)} ago; {limits}"
    if silent >= grace(lease):
        return BROKEN, "Silent", said, f"the agent does not run or cannot reach the hub: check that it runs; {_DOCTOR}"
    if silent > LATE * lease:
        return WARNING, "Late", said, f"the cluster becomes Unknown in {duration_text(grace(lease) - silent)}; {_DOCTOR}"
    return OK, "Beating", said, ""


def clock(facts: ClusterFacts) -> StepResult | None:
    found = conditions.find(doc.conditions(facts.document), conditions.CLOCK_SYNCED)
    if found is None:
        return None
    if found.status != conditions.FALSE:
        return OK, found.reason, found.message, ""
    return (
        WARNING,
        found.reason,
        found.message,
        "set the clock of the agent's machine by NTP: it decides which certificates are valid",
    )


def api_server(facts: ClusterFacts) -> StepResult | None:
    """Examine the agent's verdict on its API server. Return None without a verdict or without beats."""
    available = cluster_rules.availability(facts.document)
    if available is not None and available.status == conditions.FALSE:
        advice = "check the API server of that cluster, with kubectl get --raw '/readyz?verbose'; the agent works"
        return BROKEN, available.reason, available.message, advice
    if available is not None and available.status == conditions.TRUE and _is_fresh(facts):
        return OK, available.reason, "the agent reports that it is ready", ""
    return None


def addons(facts: ClusterFacts) -> StepResult | None:
    if not facts.addons:
        return None
    states = {doc.name(addon): conditions.find(doc.conditions(addon), conditions.ADDON_AVAILABLE) for addon in facts.addons}
    ill = [name for name, found in states.items() if found is None or found.status != conditions.TRUE]
    if not ill:
        return OK, "Available", f"all {len(facts.addons)} are Available", ""
    named = ", ".join(ill[:NAMED]) + (f" and {len(ill) - NAMED} more" if ill[NAMED:] else "")
    advice = f"see kubectl -n {facts.name} get managedclusteraddons -o yaml, and their agents' leases on the cluster"
    return WARNING, "AddOnsNotAvailable", f"not Available: {named}", advice


def brake(facts: ClusterFacts) -> StepResult | None:
    if not facts.brake.holds:
        return None
    said = f"{facts.brake.silent} of {facts.brake.fleet} clusters became silent at once: taints and removals are postponed"
    advice = "the cause is probably the hub or the network; if the clusters have failed: hubctl release-brake"
    return WARNING, "BrakeHolds", said, advice


def flaps(facts: ClusterFacts) -> StepResult | None:
    if facts.falls < FLAPS:
        return None
    said = f"it stopped being Available {facts.falls} times within an hour"
    return WARNING, "Flaps", said, f"hubctl describe cluster {facts.name} shows when and why"


def _never_registered(facts: ClusterFacts, said: str) -> StepResult:
    """A finding about the best bootstrap credential with which the cluster could have registered."""
    make = f"hubctl create bootstrap-kubeconfig --cluster {facts.name} -o {facts.name}.bootstrap"
    if not facts.offers:
        return BROKEN, "NoBootstrapCredential", f"{said}, and there is no bootstrap credential for this name", make
    order = (CredentialPhase.ACTIVE, CredentialPhase.EXPIRED, CredentialPhase.USED_UP, CredentialPhase.REVOKED)
    best = min(facts.offers, key=lambda offer: (order.index(offer.phase), -offer.record.created_at.timestamp()))
    record, end = best.record, format_time(best.record.expires_at)
    why = f" ({record.revoked_reason})" if record.revoked_reason else ""
    words = {
        CredentialPhase.ACTIVE: f"is valid until {end}",
        CredentialPhase.EXPIRED: f"expired at {end}, {facts.ago(record.expires_at)}",
        CredentialPhase.USED_UP: f"is used up: other agents have spent its {record.uses} uses",
        CredentialPhase.REVOKED: f"is revoked{why}",
    }[best.phase]
    found = f"the bootstrap credential {record.id} {words}"
    if best.phase is CredentialPhase.ACTIVE:
        return WAITING, "NotRegisteredYet", f"{said}; {found}", f"start the agent with it; if it runs, {_DOCTOR}"
    return BROKEN, f"BootstrapCredential{best.phase}", f"{said}, and {found}", make


def _created(request: Document) -> str:
    return str(doc.mapping(request, "metadata").get("creationTimestamp") or "")


def _valid_certificate(facts: ClusterFacts) -> CertificateRecord | None:
    return next((record for record in facts.of_purpose(Purpose.AGENT)[::-1] if record.is_open(facts.now)), None)


def _is_fresh(facts: ClusterFacts) -> bool:
    at = facts.beat.at if facts.beat is not None else None
    return at is not None and facts.now - at < grace(cluster_rules.lease_duration(facts.document))


def _lives(facts: ClusterFacts, name: str) -> bool:
    """Whether the replica is alive. If there are no records of replicas (an earlier release), none counts as lost."""
    found = (facts.replicas or {}).get(name)
    return not facts.replicas or (found is not None and not found.is_lost(facts.now))
