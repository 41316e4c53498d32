"""First steps of a diagnosis: the cluster, its bootstrap credential, both decisions, its certificate."""

from datetime import timedelta

from hub.api.bootstrapcredentials import CredentialPhase
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests.request import RequestPhase, state
from hub.api.clusterdiagnoses.facts import ClusterFacts, DiagnosisFinding, FindingState, Offer, whole
from hub.api.managedclusters import cluster as rules, duplicates as duplicate
from hub.api.managedclusters.removal import DELETING
from hub.api.meta import document as doc
from hub.api.revocations import CLUSTER_REBUILT
from machinery.meta import conditions
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time, parse_time

SIGNED_WITHIN = timedelta(seconds=30)
"""After this time an approved but unsigned request is a fault; normally it is signed at once."""
ENDS_SOON = 0.1
"""Share of a certificate's validity; agents renew long before."""

_DOCTOR = "run `spoke doctor` there, with the settings of its `spoke run`: it walks the way from the cluster to the hub"


def known(facts: ClusterFacts) -> DiagnosisFinding:
    """Whether the cluster exists, and whether it is being deleted."""
    if facts.cluster is None:
        return _never_came(facts, "cluster", f'no cluster "{facts.name}" has come to this hub')
    metadata = doc.mapping(facts.cluster, "metadata")
    created = str(metadata.get("creationTimestamp") or "")
    if not doc.is_deleting(facts.cluster):
        return DiagnosisFinding("cluster", FindingState.OK, "Known", f"known since {created}")
    deleting = conditions.find(doc.conditions(facts.cluster), DELETING)
    why = f": {deleting.message}" if deleting is not None and deleting.message else ""
    held = ", ".join(map(str, metadata.get("finalizers") or ())) or "nothing"
    return DiagnosisFinding(
        "cluster",
        FindingState.BROKEN,
        "Deleting",
        f"it is being deleted since {metadata.get('deletionTimestamp')}; what holds it: {held}{why}",
        f"wait, remove what is left, or give it up with `hubctl delete cluster {facts.name} --force`",
    )


def duplicated_agents(facts: ClusterFacts) -> DiagnosisFinding | None:
    """Duplicate agents or clusters."""
    found = conditions.find(doc.conditions(facts.document), rules.DUPLICATED)
    if found is None or found.status != conditions.TRUE:
        return None
    advice = {
        duplicate.TWO_AGENTS: f"stop all agents of this cluster but one, or: hubctl accept {facts.name} --agent ID",
        duplicate.ANOTHER_CLUSTER: f"give the other cluster another name, or: hubctl accept {facts.name} --rebuilt",
    }.get(found.reason, "")
    # a refused second cluster does not harm the one that has the name
    broken = found.reason == duplicate.TWO_AGENTS
    return DiagnosisFinding(
        "one of a name", FindingState.BROKEN if broken else FindingState.WARNING, found.reason, found.message, advice
    )


def accepted(facts: ClusterFacts) -> DiagnosisFinding:
    step, name = "acceptance", facts.name
    if rules.is_accepted(facts.document):
        return DiagnosisFinding(step, FindingState.OK, "Accepted", rules.accepted(facts.document).message)
    if rules.is_denied(facts.document):
        said = "it was denied by an operator, and may not report"
        return DiagnosisFinding(step, FindingState.BROKEN, "Denied", said, f"hubctl accept {name}")
    return DiagnosisFinding(step, FindingState.WAITING, "NotAccepted", "nobody has accepted it yet", f"hubctl accept {name}")


def requested(facts: ClusterFacts) -> DiagnosisFinding | None:
    """The certificate request; None while a certificate is valid, or if there is no newer request than the last certificate."""
    if _good(facts) is not None:
        return None
    before = facts.of_purpose(Purpose.AGENT)
    asked = [request for request in facts.requests if not before or parse_time(_asked(request)) > before[-1].issued_at]
    if not asked:
        return None if before else _never_came(facts, "request", "its agent has asked for no certificate")
    request = asked[-1]
    name, status = doc.name(request), state(request)
    match status.phase:
        case RequestPhase.PENDING:
            said = f"the certificate request {name} waits for a decision since {_asked(request)}"
            return DiagnosisFinding("request", FindingState.WAITING, "NotApproved", said, f"hubctl certificate approve {name}")
        case RequestPhase.DENIED | RequestPhase.FAILED:
            because = ": ".join(part for part in (status.reason, status.message) if part)
            ended = "was denied" if status.phase is RequestPhase.DENIED else "failed"
            said = f"the certificate request {name} {ended} ({because})"
            advice = "the agent asks again by itself while its bootstrap credential is good: approve that one (hubctl get csr)"
            return DiagnosisFinding("request", FindingState.BROKEN, f"Request{status.phase}", said, advice)
        case RequestPhase.APPROVED:
            return _unsigned(facts, request)
    return None


def _unsigned(facts: ClusterFacts, request: Document) -> DiagnosisFinding:
    name = doc.name(request)
    late = facts.now - parse_time(_asked(request)) > SIGNED_WITHIN
    said = f"the certificate request {name} is approved and not signed yet"
    advice = "signing is the leader's: `hubctl get leader`, its log, and `hub doctor` on its machine" if late else ""
    return DiagnosisFinding("request", FindingState.BROKEN if late else FindingState.WAITING, "NotSigned", said, advice)


def _asked(request: Document) -> str:
    return str(doc.mapping(request, "metadata").get("creationTimestamp") or "")


def certificate(facts: ClusterFacts) -> DiagnosisFinding | None:
    """The newest certificate of its agents; None if none was ever issued."""
    newest = _good(facts)
    if newest is not None:
        left, life = newest.not_after - facts.now, newest.not_after - newest.not_before
        said = f'agent "{newest.agent}", serial {newest.serial:x}, until {format_time(newest.not_after)} (in {whole(left)})'
        if left < ENDS_SOON * life:
            advice = f"it should have been renewed: see the agent's log, and a request that waits (hubctl get csr); {_DOCTOR}"
            return DiagnosisFinding("certificate", FindingState.WARNING, "EndsSoon", said, advice)
        return DiagnosisFinding("certificate", FindingState.OK, "Good", said)
    ended = facts.of_purpose(Purpose.AGENT)
    return _ended(facts, ended[-1]) if ended else None


def _ended(facts: ClusterFacts, last: CertificateRecord) -> DiagnosisFinding:
    again = f"hubctl create bootstrap-kubeconfig --cluster {facts.name}, and give it to the agent; it registers by itself"
    if last.revoked_at is not None:
        why = f" ({last.revoked_reason})" if last.revoked_reason else ""
        said = f"the certificate with serial {last.serial:x} was revoked at {format_time(last.revoked_at)}{why}"
        if last.revoked_reason == CLUSTER_REBUILT:
            again = "another cluster has the name now; the one before registers under another name"
        return DiagnosisFinding("certificate", FindingState.BROKEN, "Revoked", said, again)
    said = f"the certificate with serial {last.serial:x} ended at {format_time(last.not_after)}, {facts.ago(last.not_after)}"
    recovery = next((record for record in facts.of_purpose(Purpose.RECOVERY)[::-1] if record.is_open(facts.now)), None)
    if recovery is None:
        return DiagnosisFinding(
            "certificate", FindingState.BROKEN, "Expired", f"{said}, and its recovery certificate too", again
        )
    said += f"; the agent comes back with its recovery certificate until {format_time(recovery.not_after)}"
    return DiagnosisFinding(
        "certificate", FindingState.BROKEN, "ExpiredRecoverable", said, f"start the agent; where it runs, {_DOCTOR}"
    )


def _good(facts: ClusterFacts) -> CertificateRecord | None:
    return next((record for record in facts.of_purpose(Purpose.AGENT)[::-1] if record.is_open(facts.now)), None)


def _never_came(facts: ClusterFacts, step: str, said: str) -> DiagnosisFinding:
    """The best bootstrap credential with which the cluster could have registered."""
    make = f"hubctl create bootstrap-kubeconfig --cluster {facts.name} -o {facts.name}.kubeconfig"
    if not facts.offers:
        why = "and there is no bootstrap credential for this name"
        return DiagnosisFinding(step, FindingState.BROKEN, "NoBootstrapCredential", f"{said}, {why}", make)
    best = min(facts.offers, key=lambda offer: (_ORDER.index(offer.phase), -offer.record.created_at.timestamp()))
    words, reason = _told(facts, best)
    if best.phase is CredentialPhase.ACTIVE:
        return DiagnosisFinding(
            step, FindingState.WAITING, reason, f"{said}; {words}", f"start the agent with it; where it runs, {_DOCTOR}"
        )
    return DiagnosisFinding(step, FindingState.BROKEN, reason, f"{said}, and {words}", make)


_ORDER = (CredentialPhase.ACTIVE, CredentialPhase.EXPIRED, CredentialPhase.USED_UP, CredentialPhase.REVOKED)


def _told(facts: ClusterFacts, offer: Offer) -> tuple[str, str]:
    record, which = offer.record, f"the bootstrap credential {offer.record.id}"
    match offer.phase:
        case CredentialPhase.ACTIVE:
            return f"{which} is good until {format_time(record.expires_at)}", "NotComeYet"
        case CredentialPhase.EXPIRED:
            ended = f"{format_time(record.expires_at)}, {facts.ago(record.expires_at)}"
            return f"{which} expired at {ended}", "BootstrapCredentialExpired"
        case CredentialPhase.USED_UP:
            return f"{which} is used up: its {record.uses} uses were spent on other agents", "BootstrapCredentialUsedUp"
        case CredentialPhase.REVOKED:
            why = f" ({record.revoked_reason})" if record.revoked_reason else ""
            return f"{which} is revoked{why}", "BootstrapCredentialRevoked"
