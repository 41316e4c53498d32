"""Use cases about the hub's CAs: operators' orders, the leader's steps, the state of a rotation, and the CAs that agents trust.

No write adds a change-log row. Each step is one transaction that checks again whether the step is due. So no step stays
incomplete if the leader is killed, or if two replicas both consider themselves the leader. An agent that uses only the
Kubernetes API has no row of trusted CAs, only certificate records.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from hub.api.certificateauthorities.authority import (
    AgentTrust,
    AuthorityId,
    AuthorityOrder,
    AuthorityRecord,
    HeldCertificate,
    Phase,
    issuing,
    signer_of,
)
from hub.api.certificateauthorities.rotation import Act, RotationAgent, RotationSnapshot, RotationStep, moved_until
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.hubreplicas import alive, could_report
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query import selection as selectable
from hub.ports import Transaction
from hub.registry.liveness import heartbeats as hearing
from hub.registry.managedclusters import service as clusters
from machinery import pki
from machinery.errors import ConflictError, InvalidError, NotFoundError
from machinery.identity import AgentId, ClusterName
from machinery.meta.objects import Key, Query
from machinery.meta.selectors import Operator, Requirement

KNOWN = "ca-sha256"
"""Fact with the hash of the issuing CA's key. Releases that support only one CA check this fact."""
COMPROMISED = "the CA that signed it is compromised"
_ACCEPTED = (Requirement(selectable.HUB_ACCEPTS, Operator.EQUALS, ("true",)),)
_AWAY = (Requirement(selectable.CLUSTER_ALIASES["status.available"], Operator.IN, ("Unknown", "")),)


@dataclass(frozen=True, slots=True)
class NewAuthority:
    """A new CA. `sealed`: its sealed key, to be stored in the database; None: the key is stored elsewhere."""

    certificate: bytes
    cross_signed: bytes | None
    sealed: bytes | None = None


def authority_id(certificate: bytes) -> AuthorityId:
    return AuthorityId(pki.parse_certificate(certificate).key_hash[:16])


def adopt(tx: Transaction, made: NewAuthority) -> AuthorityRecord:
    """Record the first CA, which issues immediately. If another replica has recorded a CA earlier, returns that CA."""
    known = issuing(tx.authorities.all())
    if known is not None:
        return known
    first = AuthorityRecord(authority_id(made.certificate), made.certificate, Phase.ISSUING, tx.now, tx.now)
    tx.authorities.put(first)
    tx.facts.set(KNOWN, pki.parse_certificate(made.certificate).key_hash)
    if made.sealed is not None:
        tx.authorities.keep_key(first.id, made.sealed)
    return first


def find(tx: Transaction, authority: AuthorityId) -> AuthorityRecord:
    """Return the CA. Raises NotFoundError."""
    found = next((each for each in tx.authorities.all() if each.id == authority), None)
    if found is None:
        raise NotFoundError(f'the hub has no CA "{authority}"')
    return found


def rotate(tx: Transaction, actor: str, *, cannot: str | None, dry_run: bool = False) -> AuthorityRecord:
    """Order the replacement of the issuing CA, and return the issuing CA. Idempotent.

    `cannot`: why no other CA can be created; None: one can. Raises ConflictError with this reason, or during a rotation.
    """
    everyone = tx.authorities.all()
    old = issuing(everyone)
    if old is None:
        raise ConflictError("the hub has no issuing CA yet: wait until its first start is complete")
    busy = next((each for each in everyone if each.phase in (Phase.DISTRIBUTING, Phase.OUTGOING)), None)
    if busy is not None:
        raise ConflictError(
            f"the CA {busy.id} is still {busy.phase.value}: wait for the end of that rotation, or order it to proceed"
        )
    if cannot is not None:
        raise ConflictError(cannot)
    return old if dry_run or old.order is not None else _ordered(tx, old, AuthorityOrder.ROTATE, actor)


def proceed(tx: Transaction, authority: AuthorityId, actor: str, *, dry_run: bool = False) -> AuthorityRecord:
    """Order the next step of this CA without waiting for agents. Return the CA. Raises NotFoundError, ConflictError."""
    one = find(tx, authority)
    if one.phase not in (Phase.DISTRIBUTING, Phase.OUTGOING, Phase.RETIRING):
        raise ConflictError(f"the CA {one.id} is {one.phase.value}: it has no next step")
    return one if dry_run or one.order is not None else _ordered(tx, one, AuthorityOrder.PROCEED, actor)


def give_up(
    tx: Transaction, authority: AuthorityId, actor: str, within: timedelta, *, cannot: str | None, dry_run: bool = False
) -> AuthorityRecord:
    """Record that a CA is compromised. Return the CA. Raises NotFoundError, ConflictError.

    If this CA issues, the hub must be able to replace it first; `cannot` is as in `rotate`. The compromised CA ends when
    connected agents have other certificates, or at the end of two periods: `within` to trust the next CA, then `within` to
    renew. Zero: no wait. A repeated order never extends the time.
    """
    one = find(tx, authority)
    if one.phase is Phase.RETIRED:
        raise ConflictError(f"the CA {one.id} is already retired: its certificates are not accepted")
    coming = any(each.phase is Phase.DISTRIBUTING for each in tx.authorities.all())
    if one.phase is Phase.ISSUING and not coming and cannot is not None:
        raise ConflictError(cannot)
    if dry_run:
        return one
    ends_at = tx.now + within if within else None
    if one.order is AuthorityOrder.COMPROMISED and ends_at is not None:
        ends_at = min(ends_at, one.ends_at) if one.ends_at is not None else None
        within = min(within, one.within or within)
    return _ordered(tx, replace(one, ends_at=ends_at, within=within), AuthorityOrder.COMPROMISED, actor)


def _ordered(tx: Transaction, authority: AuthorityRecord, order: AuthorityOrder, actor: str) -> AuthorityRecord:
    ordered = replace(authority, order=order, ordered_by=actor)
    tx.authorities.put(ordered)
    return ordered


def propose(tx: Transaction, made: NewAuthority) -> AuthorityRecord:
    """Record the next CA, which agents must trust from now on. If a next CA is already recorded, returns that CA."""
    coming = next((each for each in tx.authorities.all() if each.phase is Phase.DISTRIBUTING), None)
    if coming is not None:
        return coming
    one, known = authority_id(made.certificate), tx.authorities.all()
    if any(each.id == one for each in known):
        raise InvalidError(f"the hub already had the CA {one}: provide another one")
    new = AuthorityRecord(one, made.certificate, Phase.DISTRIBUTING, tx.now, tx.now, cross_signed=made.cross_signed)
    tx.authorities.put(new)
    if made.sealed is not None:
        tx.authorities.keep_key(new.id, made.sealed)
    return new


def take(tx: Transaction, step: RotationStep, recovery: timedelta) -> Sequence[AuthorityRecord]:
    """Execute a due step, if it still fits the CA's phase. `recovery`: maximum time in Retiring. Returns the changed CAs."""
    one, changed = find(tx, step.authority), list[AuthorityRecord]()
    match step.act, one.phase:
        case Act.ISSUE, Phase.DISTRIBUTING:
            before = issuing(tx.authorities.all())
            tx.facts.set(KNOWN, pki.parse_certificate(one.certificate).key_hash)
            changed = [one.moved(Phase.ISSUING, tx.now)]
            if before is not None:
                changed.append(before.moved(Phase.OUTGOING, tx.now, moved_until(before, tx.now)))
        case Act.RETIRE, Phase.OUTGOING:
            changed = [one.moved(Phase.RETIRING, tx.now, tx.now + recovery)]
        case Act.END, phase if phase not in (Phase.ISSUING, Phase.RETIRED):
            if one.is_given_up:
                tx.authorities.revoke_signed(one.signer, tx.now, COMPROMISED)
                for cluster in tx.authorities.clusters_without_certificate(one.signer, COMPROMISED, tx.now):
                    clusters.note_revoked(tx, cluster, one.ordered_by or "hub")
            tx.authorities.keep_key(one.id, None)
            changed = [replace(one.moved(Phase.RETIRED, tx.now), compromised=one.is_given_up)]
    for each in changed:
        tx.authorities.put(each)
    return changed


def left_behind(tx: Transaction, one: AuthorityRecord) -> tuple[ClusterName, ...]:
    """Return accepted clusters that lost an agent certificate of this compromised CA and have no valid agent certificate."""
    accepted = {stored.key.name for stored in tx.objects.find(MANAGED_CLUSTERS, Query(fields=_ACCEPTED)).items}
    lost = tx.authorities.clusters_without_certificate(one.signer, COMPROMISED, tx.now)
    return tuple(cluster for cluster in lost if cluster in accepted)


def rotation_snapshot(tx: Transaction, *, with_agents: bool = True) -> RotationSnapshot:
    """Return the state of the CAs, replicas, agents and certificates on which the steps of a rotation depend.

    `with_agents`: read the whole fleet. No step from Retiring to Retired depends on agents.
    """
    everyone = tuple(tx.authorities.all())
    signed: dict[AuthorityId, dict[Purpose, int]] = defaultdict(dict)
    for (signed_by, purpose), count in tx.authorities.signed(tx.now).items():
        if (signer := signer_of(signed_by, everyone)) is not None:
            signed[signer.id][purpose] = count
    replicas = tx.replicas.all()
    # after a database outage, all replicas count as living until they have had time to update their rows
    can_judge = could_report(hearing.covered_since(tx), tx.now)
    return RotationSnapshot(
        now=tx.now,
        authorities=everyone,
        fingerprints={each.id: pki.parse_certificate(each.certificate).fingerprint for each in everyone},
        members=_members(tx, everyone) if with_agents else (),
        signed=signed,
        followers=tuple(tx.authorities.followers()),
        living=alive(replicas, tx.now) if can_judge else frozenset(replica.name for replica in replicas),
        left_behind={one.id: left_behind(tx, one) for one in everyone if one.compromised},
    )


def _members(tx: Transaction, everyone: Sequence[AuthorityRecord]) -> tuple[RotationAgent, ...]:
    """Return one agent per accepted cluster: the agent whose certificate was issued last."""
    accepted = {
        stored.key.name: cluster_rules.lease_duration(stored.document)
        for stored in tx.objects.find(MANAGED_CLUSTERS, Query(fields=_ACCEPTED)).items
    }
    away = {stored.key.name for stored in tx.objects.find(MANAGED_CLUSTERS, Query(fields=_AWAY)).items}
    connected = {beat.cluster: beat.at for beat in tx.heartbeats.all() if beat.session is not None}
    reports = {(each.cluster, each.agent): each for each in current_trust(tx)}
    newest: dict[ClusterName, HeldCertificate] = {}
    for held in tx.authorities.held(Purpose.AGENT, tx.now):
        before = newest.get(held.cluster)
        if held.cluster in accepted and (before is None or before.issued_at < held.issued_at):
            newest[held.cluster] = held
    members = []
    for cluster, held in newest.items():
        report, at = reports.get((cluster, held.agent)), connected.get(cluster)
        signer = signer_of(held.signed_by if report is None else report.signed_by, everyone)
        member = RotationAgent(
            cluster,
            AgentId(held.agent),
            signer.id if signer else None,
            connected=cluster in connected,
            away=cluster in away and cluster not in connected,
            trusted=None if report is None else report.trusted,
            silent=cluster in connected and (not at or tx.now - at > accepted[cluster]),
        )
        members.append(member)
    return tuple(members)


@dataclass(frozen=True, slots=True)
class TrustReport:
    """The certificate that an agent presented, and the CAs that the agent trusts; None if the agent does not report them."""

    record: CertificateRecord
    trusted: frozenset[str] | None


def trust_news(tx: Transaction, reports: Iterable[TrustReport]) -> Sequence[AgentTrust]:
    """Return the new rows for the reports that differ from the stored rows. Writes nothing."""
    found = [
        AgentTrust(
            cluster=record.cluster,
            agent=record.agent,
            trusted=report.trusted,
            serial=record.serial,
            issued_at=record.issued_at,
            not_after=record.not_after,
            signed_by=record.signed_by,
            since=tx.now,
        )
        for report in reports
        if (record := report.record).cluster is not None and record.agent is not None
    ]
    return [each for each in found if not each.is_as(tx.trusts.get(each.cluster, each.agent))]


def note_trust(tx: Transaction, reports: Iterable[TrustReport]) -> int:
    """Store reports and return the number of written rows. Unchanged reports and deleted clusters cause no write.

    The certificate that was presented last counts, not the newest: an agent may use an earlier certificate again.
    """
    news = trust_news(tx, reports)
    known = [each for each in news if tx.objects.get(MANAGED_CLUSTERS, Key("", each.cluster)) is not None]
    for each in known:
        tx.trusts.put(each)
    return len(known)


def current_trust(tx: Transaction) -> Sequence[AgentTrust]:
    """Return the stored rows of trusted CAs of all agents whose certificate has not expired."""
    return [each for each in tx.trusts.all() if each.not_after > tx.now]
