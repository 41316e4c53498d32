"""Use cases about the hub's CAs: operators' orders, the leader's steps, the state of a rotation, and the CAs that agents trust.

No write adds a change-log row. Each step is one transaction that checks again whether it is due, so a leader that dies, or two
that believe to lead, leave no half-done step. An agent has no row of trust if it never reported to a release that stores this,
or uses the Kubernetes API only. For such agents only certificate records exist.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from hub.api.certificateauthorities.authority import (
    AgentTrust,
    AuthorityId,
    AuthorityOrder,
    AuthorityRecord,
    Follower,
    HeldCertificate,
    Phase,
    issuing,
    signer_of,
)
from hub.api.certificateauthorities.rotation import Act, Member, RotationSnapshot, RotationStep, moved_until
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.hubreplicas import alive, could_report
from hub.api.managedclusters import cluster as rules
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
"""Fact: hash of the issuing CA's key. Releases that know only one CA check it."""
COMPROMISED = "the CA that signed it is compromised"
_ACCEPTED = (Requirement(selectable.HUB_ACCEPTS, Operator.EQUALS, ("true",)),)
_AWAY = (Requirement(selectable.CLUSTER_ALIASES["status.available"], Operator.IN, ("Unknown", "")),)


@dataclass(frozen=True, slots=True)
class Made:
    """A new CA. `sealed`: its key, if it is stored in the database."""

    certificate: bytes
    cross_signed: bytes | None
    sealed: bytes | None = None


def authority_id(certificate: bytes) -> AuthorityId:
    return AuthorityId(pki.parse_certificate(certificate).key_hash[:16])


def all_of(tx: Transaction) -> Sequence[AuthorityRecord]:
    return tx.authorities.all()


def adopt(tx: Transaction, made: Made) -> AuthorityRecord:
    """Record the first CA, which issues at once. Returns the recorded one if another replica was faster."""
    known = issuing(tx.authorities.all())
    if known is not None:
        return known
    first = AuthorityRecord(authority_id(made.certificate), made.certificate, Phase.ISSUING, tx.now, tx.now)
    tx.authorities.put(first)
    tx.facts.set(KNOWN, pki.parse_certificate(made.certificate).key_hash)
    if made.sealed is not None:
        tx.authorities.keep_key(first.id, made.sealed)
    return first


def follow(tx: Transaction, replica: str, known: Sequence[Follower]) -> None:
    tx.authorities.follow(replica, known)


def find(tx: Transaction, authority: AuthorityId) -> AuthorityRecord:
    """Raises NotFoundError."""
    found = next((each for each in tx.authorities.all() if each.id == authority), None)
    if found is None:
        raise NotFoundError(f'the hub has no CA "{authority}"')
    return found


def rotate(tx: Transaction, actor: str, *, cannot: str | None, dry_run: bool = False) -> AuthorityRecord:
    """Order the replacement of the issuing CA and return it. Idempotent.

    `cannot`: why no other CA can be made here. Raises ConflictError for that reason, or while a rotation is in progress.
    """
    everyone = tx.authorities.all()
    old = issuing(everyone)
    if old is None:
        raise ConflictError("no CA issues: is this the hub's first start?")
    busy = next((each for each in everyone if each.phase in (Phase.DISTRIBUTING, Phase.OUTGOING)), None)
    if busy is not None:
        raise ConflictError(f"the CA {busy.id} is {busy.phase.value} still: wait until that change is over, or let it proceed")
    if cannot is not None:
        raise ConflictError(cannot)
    return old if dry_run or old.wish is not None else _wished(tx, old, AuthorityOrder.ROTATE, actor)


def proceed(tx: Transaction, authority: AuthorityId, actor: str, *, dry_run: bool = False) -> AuthorityRecord:
    """Order the next step of this CA without waiting for agents. Raises NotFoundError, ConflictError."""
    one = find(tx, authority)
    if one.phase not in (Phase.DISTRIBUTING, Phase.OUTGOING, Phase.RETIRING):
        raise ConflictError(f"the CA {one.id} is {one.phase.value}: nothing of it is waited for")
    return one if dry_run or one.wish is not None else _wished(tx, one, AuthorityOrder.PROCEED, actor)


def give_up(
    tx: Transaction, authority: AuthorityId, actor: str, within: timedelta, *, cannot: str | None, dry_run: bool = False
) -> AuthorityRecord:
    """Record that a CA is compromised: it ends as soon as agents have moved. Raises NotFoundError, ConflictError.

    The issuing CA must be replaced first, hence `cannot` as in `rotate`. Agents have `within` to trust the next CA, and
    `within` to renew. A repeated order never extends the time.
    """
    one = find(tx, authority)
    if one.phase is Phase.RETIRED:
        raise ConflictError(f"the CA {one.id} is retired: nothing of it counts any more")
    coming = any(each.phase is Phase.DISTRIBUTING for each in tx.authorities.all())
    if one.phase is Phase.ISSUING and not coming and cannot is not None:
        raise ConflictError(cannot)
    if dry_run:
        return one
    ends_at = tx.now + within if within else None
    if one.wish is AuthorityOrder.COMPROMISED and ends_at is not None:
        ends_at = min(ends_at, one.ends_at) if one.ends_at is not None else None
        within = min(within, one.within or within)
    return _wished(tx, replace(one, ends_at=ends_at, within=within), AuthorityOrder.COMPROMISED, actor)


def _wished(tx: Transaction, authority: AuthorityRecord, wish: AuthorityOrder, actor: str) -> AuthorityRecord:
    wished = replace(authority, wish=wish, wished_by=actor)
    tx.authorities.put(wished)
    return wished


def propose(tx: Transaction, made: Made) -> AuthorityRecord:
    """Record the next CA, which agents shall trust from now on. Returns an already recorded one."""
    coming = next((each for each in tx.authorities.all() if each.phase is Phase.DISTRIBUTING), None)
    if coming is not None:
        return coming
    one, known = authority_id(made.certificate), tx.authorities.all()
    if any(each.id == one for each in known):
        raise InvalidError(f"the CA {one} is known already, and does not come back")
    new = AuthorityRecord(one, made.certificate, Phase.DISTRIBUTING, tx.now, tx.now, cross_signed=made.cross_signed)
    tx.authorities.put(new)
    if len(known) == 1:  # with one CA the signer is certain, and its revocation list keeps these records after it has retired
        tx.authorities.name_signer(known[0].signer)
    if made.sealed is not None:
        tx.authorities.keep_key(new.id, made.sealed)
    return new


def take(tx: Transaction, step: RotationStep, recovery: timedelta) -> Sequence[AuthorityRecord]:
    """Take a step that `hub.api.certificateauthorities.rotation` found due. Returns the CAs that it changed."""
    one = find(tx, step.authority)
    match step.act, one.phase:
        case Act.ISSUE, Phase.DISTRIBUTING:
            return _issue(tx, one)
        case Act.RETIRE, Phase.OUTGOING:
            return [_put(tx, one.moved(Phase.RETIRING, tx.now, tx.now + recovery))]
        case Act.END, phase if phase not in (Phase.ISSUING, Phase.RETIRED):
            return [_end(tx, one)]
        case _:
            return []


def _issue(tx: Transaction, new: AuthorityRecord) -> Sequence[AuthorityRecord]:
    before = issuing(tx.authorities.all())
    changed = [_put(tx, new.moved(Phase.ISSUING, tx.now))]
    tx.facts.set(KNOWN, pki.parse_certificate(new.certificate).key_hash)
    if before is not None:
        changed.append(_put(tx, before.moved(Phase.OUTGOING, tx.now, moved_until(before, tx.now))))
    return changed


def _end(tx: Transaction, one: AuthorityRecord) -> AuthorityRecord:
    if one.is_given_up:
        signers = _signers(one, tx.authorities.all())
        tx.authorities.revoke_signed(signers, tx.now, COMPROMISED)
        for cluster in tx.authorities.clusters_without_certificate(signers, COMPROMISED, tx.now):
            clusters.note_revoked(tx, cluster, one.wished_by or "hub")
    tx.authorities.keep_key(one.id, None)
    return _put(tx, replace(one.moved(Phase.RETIRED, tx.now), compromised=one.is_given_up))


def left_behind(tx: Transaction, one: AuthorityRecord) -> tuple[ClusterName, ...]:
    """Accepted clusters whose agent had only certificates of this compromised CA, and has got no other since."""
    accepted = {stored.key.name for stored in tx.objects.find(MANAGED_CLUSTERS, Query(fields=_ACCEPTED)).items}
    lost = tx.authorities.clusters_without_certificate(_signers(one, tx.authorities.all()), COMPROMISED, tx.now)
    return tuple(cluster for cluster in lost if cluster in accepted)


def _signers(one: AuthorityRecord, everyone: Sequence[AuthorityRecord]) -> list[str | None]:
    """Its names in records. Records without a signer belong to the first CA."""
    first = min(everyone, key=lambda each: each.created_at)
    return [one.signer, *([None] if one.id == first.id else [])]


def _put(tx: Transaction, authority: AuthorityRecord) -> AuthorityRecord:
    tx.authorities.put(authority)
    return authority


def rotation_snapshot(tx: Transaction) -> RotationSnapshot:
    """Read everything that a rotation depends on."""
    everyone = tuple(tx.authorities.all())
    return RotationSnapshot(
        now=tx.now,
        authorities=everyone,
        fingerprints={each.id: pki.parse_certificate(each.certificate).fingerprint for each in everyone},
        members=_members(tx, everyone),
        signed=_signed(tx, everyone),
        followers=tuple(tx.authorities.followers()),
        living=_living(tx),
        left_behind={one.id: left_behind(tx, one) for one in everyone if one.compromised},
    )


def _living(tx: Transaction) -> frozenset[str]:
    """Serving replicas; after a database outage also those that had no time to update their rows yet."""
    everybody = tx.replicas.all()
    if could_report(hearing.covered_since(tx), tx.now):
        return alive(everybody, tx.now)
    return frozenset(replica.name for replica in everybody)


def _members(tx: Transaction, everyone: Sequence[AuthorityRecord]) -> tuple[Member, ...]:
    """One agent per accepted cluster: the one whose certificate was issued last."""
    accepted = {
        stored.key.name: rules.lease_duration(stored.document)
        for stored in tx.objects.find(MANAGED_CLUSTERS, Query(fields=_ACCEPTED)).items
    }
    away = {stored.key.name for stored in tx.objects.find(MANAGED_CLUSTERS, Query(fields=_AWAY)).items}
    connected = {beat.cluster: beat.at for beat in tx.heartbeats.all() if beat.session is not None}
    silent = {
        cluster for cluster, at in connected.items() if cluster in accepted and (not at or tx.now - at > accepted[cluster])
    }
    said = {(each.cluster, each.agent): each for each in current_trust(tx)}
    chosen: dict[ClusterName, HeldCertificate] = {}
    for held in tx.authorities.held(Purpose.AGENT, tx.now):
        before = chosen.get(held.cluster)
        if held.cluster in accepted and (before is None or before.issued_at < held.issued_at):
            chosen[held.cluster] = held
    return tuple(
        replace(
            _member(held, said.get((held.cluster, held.agent)), everyone, held.cluster in connected, held.cluster in away),
            silent=held.cluster in silent,
        )
        for held in chosen.values()
    )


def _member(
    held: HeldCertificate,
    said: AgentTrust | None,
    everyone: Sequence[AuthorityRecord],
    connected: bool,  # noqa: FBT001 - a private part
    away: bool,  # noqa: FBT001 - a private part
) -> Member:
    cluster, agent = ClusterName(held.cluster), AgentId(held.agent)
    signer = signer_of(held.signed_by if said is None else said.signed_by, everyone)
    trusted = None if said is None else said.trusted
    return Member(
        cluster, agent, signer.id if signer else None, connected=connected, away=away and not connected, trusted=trusted
    )


def _signed(tx: Transaction, everyone: Sequence[AuthorityRecord]) -> Mapping[AuthorityId, Mapping[Purpose, int]]:
    counted: dict[AuthorityId, dict[Purpose, int]] = defaultdict(dict)
    for (signed_by, purpose), count in tx.authorities.signed(tx.now).items():
        signer = signer_of(signed_by, everyone)
        if signer is not None:
            counted[signer.id][purpose] = counted[signer.id].get(purpose, 0) + count
    return counted


@dataclass(frozen=True, slots=True)
class TrustReport:
    """The certificate that an agent presented, and the CAs that it trusts."""

    record: CertificateRecord
    trusted: frozenset[str] | None


def trust_news(tx: Transaction, words: Iterable[TrustReport]) -> Sequence[AgentTrust]:
    """Reports that differ from the stored rows. Read-only."""
    said = [_said(tx, word) for word in words if word.record.cluster is not None and word.record.agent is not None]
    return [each for each in said if not each.is_as(_known_trust(tx, each))]


def note_trust(tx: Transaction, words: Iterable[TrustReport]) -> int:
    """Store reports and return the number of written rows. Unchanged reports are not written.

    The certificate presented last counts, not the newest: an agent may have returned to an earlier one. Deleted clusters get no
    row.
    """
    written = 0
    for said in trust_news(tx, words):
        if tx.objects.get(MANAGED_CLUSTERS, Key("", said.cluster)) is not None:
            tx.trusts.put(said)
            written += 1
    return written


def current_trust(tx: Transaction) -> Sequence[AgentTrust]:
    """Rows of all agents whose certificate has not expired."""
    return [each for each in tx.trusts.all() if each.not_after > tx.now]


def _said(tx: Transaction, word: TrustReport) -> AgentTrust:
    record = word.record
    if record.cluster is None or record.agent is None:
        raise AssertionError
    return AgentTrust(
        cluster=record.cluster,
        agent=record.agent,
        trusted=word.trusted,
        serial=record.serial,
        issued_at=record.issued_at,
        not_after=record.not_after,
        signed_by=record.signed_by,
        since=tx.now,
    )


def _known_trust(tx: Transaction, said: AgentTrust) -> AgentTrust | None:
    return tx.trusts.get(said.cluster, said.agent)
