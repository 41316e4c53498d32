"""What the store in memory holds, and the parts of a transaction that are plain tables."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from hub.domain import succession
from hub.domain.attestation import Binding
from hub.domain.authority import Authority, AuthorityId, Follower, Held
from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.chain import AuditQuery, Head, Link, selects
from hub.domain.change import Change, Key, Kind, StoredObject
from hub.domain.credential import DELETED, CredentialRecord, CredentialUse, Tally
from hub.domain.hearing import Mark
from hub.domain.heartbeat import Beat, LastBeat
from hub.domain.replica import AgentSession, Replica
from hub.domain.transition import Transition
from hub.domain.trust import AgentTrust
from hub.ports import (
    AgentSessions,
    AuditLog,
    Authorities,
    Bindings,
    Certificates,
    Credentials,
    Facts,
    Heartbeats,
    Leaders,
    Marks,
    Replicas,
    Transitions,
    Trusts,
)
from hub.store.ages import written_by
from hub.store.instants import to_micros
from machinery.conditions import UNKNOWN
from machinery.election.lock import Candidate, Record
from machinery.errors import ConflictError, NotLeaderError
from machinery.identity import AgentId, ClusterName, CredentialId, SerialNumber

Place = tuple[Kind, Key]


@dataclass
class State:
    """All that is committed."""

    objects: dict[Place, StoredObject] = field(default_factory=dict)
    log: list[Change] = field(default_factory=list)
    revision: int = 0
    compacted: int = 0
    floor: int = 0
    measured: int = 0
    free: int | None = None
    authorities: dict[AuthorityId, Authority] = field(default_factory=dict)
    sealed_keys: dict[AuthorityId, bytes] = field(default_factory=dict)
    followers: dict[str, tuple[Follower, ...]] = field(default_factory=dict)
    certificates: dict[SerialNumber, CertificateRecord] = field(default_factory=dict)
    credentials: dict[CredentialId, CredentialRecord] = field(default_factory=dict)
    admissions: dict[CredentialId, frozenset[ClusterName]] = field(default_factory=dict)
    uses: dict[tuple[CredentialId, ClusterName, AgentId], CredentialUse] = field(default_factory=dict)
    bindings: dict[ClusterName, Binding] = field(default_factory=dict)
    beats: dict[ClusterName, LastBeat] = field(default_factory=dict)
    transitions: list[Transition] = field(default_factory=list)
    marks: dict[str, Mark] = field(default_factory=dict)
    replicas: dict[str, Replica] = field(default_factory=dict)
    sessions: dict[tuple[ClusterName, AgentId], AgentSession] = field(default_factory=dict)
    trusts: dict[tuple[ClusterName, AgentId], AgentTrust] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    links: dict[tuple[str, int], Link] = field(default_factory=dict)
    anchors: dict[str, Head] = field(default_factory=dict)
    leader: Record | None = None
    term: int = 0
    revocations: int = 0
    """How often something was revoked."""

    def copied(self) -> "State":
        copies: dict[str, Any] = {name: value.copy() for name, value in vars(self).items() if isinstance(value, dict | list)}
        return replace(self, **copies)


class MemoryCertificates(Certificates):
    def __init__(self, state: State) -> None:
        self._state = state
        self._records = state.certificates

    def add(self, record: CertificateRecord) -> None:
        same = [r for r in self.of_request(record.request_uid) if r.purpose == record.purpose] if record.request_uid else []
        if record.serial in self._records or same:
            raise ConflictError("the certificate is recorded already")
        self._records[record.serial] = record

    def by_serial(self, serial: SerialNumber) -> CertificateRecord | None:
        return self._records.get(serial)

    def of_cluster(self, cluster: ClusterName) -> Sequence[CertificateRecord]:
        return [record for record in self._records.values() if record.cluster == cluster]

    def of_request(self, request_uid: str) -> Sequence[CertificateRecord]:
        return [record for record in self._records.values() if record.request_uid == request_uid]

    def of_key(self, key_hash: str) -> Sequence[CertificateRecord]:
        return [record for record in self._records.values() if record.key_hash == key_hash]

    def of_credential(self, credential: CredentialId) -> Sequence[CertificateRecord]:
        records = self._records.values()
        return [record for record in records if record.credential == credential and record.purpose is Purpose.BOOTSTRAP]

    def forget_logins(self, ended_before: datetime, limit: int) -> int:
        logins = (record for record in self._records.values() if record.purpose is Purpose.LOGIN)
        ended = [record.serial for record in logins if record.not_after < ended_before][:limit]
        for serial in ended:
            del self._records[serial]
        return len(ended)

    def ended(self, before: datetime, limit: int) -> Sequence[SerialNumber]:
        first: dict[tuple[object, ...], SerialNumber] = {}
        for record in sorted(self._records.values(), key=lambda each: (each.issued_at, f"{each.serial:x}"), reverse=True):
            if record.cluster is not None and record.agent is not None:
                first[record.cluster, record.agent, record.purpose] = record.serial
        kept = set(first.values())
        return [each.serial for each in self._records.values() if each.not_after < before and each.serial not in kept][:limit]

    def forget(self, serials: Collection[SerialNumber]) -> int:
        return sum(self._records.pop(serial, None) is not None for serial in serials)

    def of_account(self, account: str) -> Sequence[CertificateRecord]:
        records = self._records.values()
        return [record for record in records if record.credential == account and record.purpose is Purpose.LOGIN]

    def revoke(self, serials: Collection[SerialNumber], at: datetime, reason: str) -> None:
        for serial in serials:
            if (record := self._records.get(serial)) and record.revoked_at is None:
                self._records[serial] = replace(record, revoked_at=at, revoked_reason=reason)
                self._state.revocations += 1

    def revoked_since(self, moment: datetime) -> Mapping[SerialNumber, str]:
        found = [record for record in self._records.values() if record.revoked_at and record.revoked_at >= moment]
        return {record.serial: record.revoked_reason or "" for record in found}

    def revoked(self, ended_after: datetime) -> Sequence[CertificateRecord]:
        found = [record for record in self._records.values() if record.revoked_at and record.not_after > ended_after]
        return sorted(found, key=lambda record: f"{record.serial:x}")


class MemoryAuthorities(Authorities):
    def __init__(self, state: State) -> None:
        self._state = state

    def all(self) -> Sequence[Authority]:
        return sorted(self._state.authorities.values(), key=lambda each: (each.created_at, each.id))

    def put(self, authority: Authority) -> None:
        self._state.authorities[authority.id] = authority
        self._state.revocations += 1

    def sealed_key(self, authority: AuthorityId) -> bytes | None:
        return self._state.sealed_keys.get(authority)

    def keep_key(self, authority: AuthorityId, sealed: bytes | None) -> None:
        self._state.sealed_keys.pop(authority, None)
        if sealed is not None and authority in self._state.authorities:
            self._state.sealed_keys[authority] = sealed

    def followers(self) -> Sequence[Follower]:
        known = [each for followed in self._state.followers.values() for each in followed]
        return sorted(known, key=lambda each: (each.replica, each.authority))

    def follow(self, replica: str, known: Sequence[Follower]) -> None:
        self._state.followers[replica] = tuple(known)

    def signed(self, now: datetime) -> Mapping[tuple[str | None, Purpose], int]:
        return Counter((record.signed_by, record.purpose) for record in self._open(now))

    def held(self, purpose: Purpose, now: datetime) -> Sequence[Held]:
        held: dict[tuple[ClusterName, AgentId], Held] = {}
        for record in sorted(self._open(now), key=lambda each: each.issued_at):
            if record.purpose is purpose and record.cluster is not None and record.agent is not None:
                one = Held(record.cluster, record.agent, record.signed_by, record.issued_at)
                held[record.cluster, record.agent] = one
        return [held[key] for key in sorted(held)]

    def name_signer(self, signer: str) -> None:
        for record in tuple(self._state.certificates.values()):
            if record.signed_by is None:
                self._state.certificates[record.serial] = replace(record, signed_by=signer)

    def revoke_signed(self, signed_by: Sequence[str | None], at: datetime, reason: str) -> int:
        of_signer = [record for record in self._open(at) if record.signed_by in signed_by]
        for record in of_signer:
            self._state.certificates[record.serial] = replace(record, revoked_at=at, revoked_reason=reason)
            self._state.revocations += 1
        return len(of_signer)

    def _open(self, now: datetime) -> list[CertificateRecord]:
        records = self._state.certificates.values()
        return [record for record in records if record.revoked_at is None and record.not_after >= now]


class MemoryCredentials(Credentials):
    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, record: CredentialRecord) -> None:
        self._state.credentials[record.id] = record

    def by_id(self, credential: CredentialId) -> CredentialRecord | None:
        return self._state.credentials.get(credential)

    def admitted(self, credential: CredentialId) -> frozenset[ClusterName]:
        return self._state.admissions.get(credential, frozenset())

    def has_admitted(self, credential: CredentialId, cluster: ClusterName) -> bool:
        return cluster in self.admitted(credential)

    def spent(self, credential: CredentialId) -> int:
        return len(self.admitted(credential))

    def admit(self, credential: CredentialId, cluster: ClusterName, at: datetime) -> None:  # noqa: ARG002 - never asked for
        self._state.admissions[credential] = self.admitted(credential) | {cluster}

    def forget_name(self, cluster: ClusterName, credential: CredentialId | None = None) -> None:
        for one in self._state.admissions if credential is None else (credential,):
            self._state.admissions[one] = self.admitted(one) - {cluster}

    def uses(self, credential: CredentialId) -> Sequence[CredentialUse]:
        found = [use for use in self._state.uses.values() if use.credential == credential]
        return sorted(found, key=lambda use: (use.held_at, use.cluster, use.agent))

    def use_of(self, credential: CredentialId, cluster: ClusterName, agent: AgentId) -> CredentialUse | None:
        return self._state.uses.get((credential, cluster, agent))

    def keep_use(self, use: CredentialUse) -> None:
        self._state.uses[use.credential, use.cluster, use.agent] = use

    def drop_use(self, use: CredentialUse) -> None:
        self._state.uses.pop((use.credential, use.cluster, use.agent), None)

    def tally(self, credential: CredentialId) -> Tally:
        uses = self.uses(credential)
        issued = sum(use.issued_at is not None for use in uses)
        names = self.admitted(credential) - {use.cluster for use in uses}
        return Tally(issued, len(uses) - issued, len(names))

    def tallies(self) -> Mapping[CredentialId, Tally]:
        found = {credential: self.tally(credential) for credential in self._state.credentials}
        return {credential: tally for credential, tally in found.items() if tally.taken}

    def revoke(self, credential: CredentialId, at: datetime, *, by: str = "", reason: str = "") -> None:
        record = self._state.credentials[credential]
        if record.revoked_at is None:
            ended = replace(record, revoked_at=at, revoked_by=by or None, revoked_reason=reason or None)
            self._state.credentials[credential] = ended
        self._state.revocations += 1

    def hide(self, credential: CredentialId) -> None:
        record = self._state.credentials[credential]
        if record.revoked_at is not None:
            self._state.credentials[credential] = replace(record, revoked_reason=DELETED)

    def revoked_since(self, moment: datetime) -> Sequence[CredentialId]:
        records = self._state.credentials.values()
        return [record.id for record in records if record.revoked_at is not None and record.revoked_at >= moment]

    def all(self) -> Sequence[CredentialRecord]:
        return list(self._state.credentials.values())

    def forget_ended(self, before: datetime) -> int:
        records = list(self._state.credentials.values())
        ended = [one.id for one in records if min(one.expires_at, one.revoked_at or one.expires_at) < before]
        for credential in ended:
            del self._state.credentials[credential]
            self._state.admissions.pop(credential, None)
            for use in self.uses(credential):
                self.drop_use(use)
        return len(ended)


class MemoryBindings(Bindings):
    def __init__(self, state: State) -> None:
        self._state = state

    def of(self, cluster: ClusterName) -> Binding | None:
        return self._state.bindings.get(cluster)

    def bind(self, binding: Binding) -> None:
        self._state.bindings[binding.cluster] = binding

    def release(self, cluster: ClusterName) -> None:
        self._state.bindings.pop(cluster, None)


class MemoryHeartbeats(Heartbeats):
    def __init__(self, state: State, now: datetime) -> None:
        self._beats = state.beats
        self._now = now

    def store(self, beats: Iterable[Beat]) -> Mapping[ClusterName, int]:
        refused: dict[ClusterName, int] = {}
        for beat in beats:
            at, last = self._now - beat.age, self._last(beat.cluster)
            if last.outdates(beat.epoch):
                refused[beat.cluster] = last.epoch
            elif last.at is None or at >= last.at:
                told = last.available if beat.available is None else beat.available
                epoch = last.epoch if beat.cluster in self._beats else beat.epoch
                self._beats[beat.cluster] = replace(last, at=at, available=told, epoch=epoch, owner=None)
        return refused

    def _last(self, cluster: ClusterName) -> LastBeat:
        return self._beats.get(cluster) or LastBeat(cluster, at=None, available=None, session=None)

    def of(self, cluster: ClusterName) -> LastBeat | None:
        return self._beats.get(cluster)

    def all(self) -> Sequence[LastBeat]:
        return [self._beats[cluster] for cluster in sorted(self._beats)]

    def set_session(self, cluster: ClusterName, session: str | None, *, agent_version: str | None = None) -> None:
        last = self._last(cluster)
        version = last.agent_version if agent_version is None else agent_version
        self._beats[cluster] = replace(last, session=session, agent_version=version)

    def claim(self, cluster: ClusterName, epoch: int) -> None:
        last = self._last(cluster)
        self._beats[cluster] = replace(last, epoch=max(last.epoch, epoch), owner=None)

    def depart(self, cluster: ClusterName, owner: str, epoch: int) -> None:
        last = self._last(cluster)
        self._beats[cluster] = replace(last, epoch=max(last.epoch, epoch), owner=owner)

    def forget(self, cluster: ClusterName) -> None:
        self._beats.pop(cluster, None)


class MemoryTransitions(Transitions):
    def __init__(self, state: State) -> None:
        self._kept = state.transitions

    def add(self, transition: Transition) -> None:
        self._kept.append(transition)

    def of(self, cluster: ClusterName, *, limit: int, uid: str | None = None) -> Sequence[Transition]:
        found = [each for each in reversed(self._kept) if each.cluster == cluster and uid in (None, each.uid)]
        return found[:limit]

    def falls(self, since: datetime, among: Collection[ClusterName] | None = None) -> Mapping[ClusterName, Sequence[datetime]]:
        found: dict[ClusterName, list[datetime]] = {}
        for each in sorted(self._kept, key=lambda each: each.at):
            if each.at > since and each.is_fall and (among is None or each.cluster in among):
                found.setdefault(each.cluster, []).append(each.at)
        return found

    def silent(self, since: datetime, reason: str) -> int:
        newest = {each.cluster: each for each in self._kept}.values()
        fallen = (each for each in newest if each.status == UNKNOWN and each.before != UNKNOWN and each.reason == reason)
        return sum(each.at > since for each in fallen)

    def trim(self, before: datetime, limit: int) -> int:
        old = sorted((each for each in self._kept if each.at < before), key=lambda each: each.at)[:limit]
        for each in old:
            self._kept.remove(each)
        return len(old)


class MemoryMarks(Marks):
    def __init__(self, state: State) -> None:
        self._state = state

    def all(self) -> Sequence[Mark]:
        return [self._state.marks[replica] for replica in sorted(self._state.marks)]

    def put(self, mark: Mark) -> None:
        self._state.marks[mark.replica] = mark

    def begin_anew(self, now: datetime) -> None:
        self._state.marks.clear()
        for cluster, last in self._state.beats.items():
            if last.at is not None and last.at > now:
                self._state.beats[cluster] = replace(last, at=now)

    def forget(self, before: datetime) -> None:
        for mark in self.all():
            if mark.at < before:
                del self._state.marks[mark.replica]


class MemoryReplicas(Replicas):
    def __init__(self, state: State) -> None:
        self._replicas = state.replicas

    def all(self) -> Sequence[Replica]:
        return [self._replicas[name] for name in sorted(self._replicas)]

    def of(self, name: str) -> Replica | None:
        return self._replicas.get(name)

    def put(self, replica: Replica) -> None:
        self._replicas[replica.name] = replica

    def remove(self, name: str) -> None:
        self._replicas.pop(name, None)


class MemoryAgentSessions(AgentSessions):
    def __init__(self, state: State) -> None:
        self._sessions = state.sessions
        self._beats = state.beats

    def open(self, session: AgentSession) -> bool:
        place = (session.cluster, session.agent)
        before = self._sessions.get(place)
        if before is not None and before.is_newer_than(session.session, session.at):
            return False
        self._sessions[place] = session
        return True

    def agents(self, cluster: ClusterName) -> Sequence[AgentId]:
        return sorted(agent for of, agent in self._sessions if of == cluster)

    def of(self, cluster: ClusterName) -> Sequence[AgentSession]:
        return [self._sessions[cluster, agent] for agent in self.agents(cluster)]

    def close(self, cluster: ClusterName, agent: AgentId, session: str) -> None:
        if (before := self._sessions.get((cluster, agent))) and before.session == session:
            del self._sessions[cluster, agent]

    def opened_since(self, moment: datetime, *, but: str) -> Sequence[AgentSession]:
        return [each for each in self._sessions.values() if each.at >= moment and each.replica != but]

    def replicas(self) -> Sequence[str]:
        return sorted({each.replica for each in self._sessions.values()})

    def end_of(self, replica: str) -> int:
        ended = [place for place, each in self._sessions.items() if each.replica == replica]
        self._silence({self._sessions.pop(place).session for place in ended})
        return len(ended)

    def end_all(self) -> None:
        self._sessions.clear()
        self._silence({last.session for last in self._beats.values()})

    def end_unowned(self, before: datetime) -> int:
        owned = {each.session for each in self._sessions.values()}
        unheard = [last for last in self._beats.values() if last.at is None or last.at < before]
        ended = {last.session for last in unheard if last.session is not None and last.session not in owned}
        self._silence(ended)
        return len(ended)

    def _silence(self, sessions: Collection[str | None]) -> None:
        for cluster, last in self._beats.items():
            if last.session in sessions:
                self._beats[cluster] = replace(last, session=None)


class MemoryTrusts(Trusts):
    def __init__(self, state: State) -> None:
        self._trusts = state.trusts

    def get(self, cluster: ClusterName, agent: AgentId) -> AgentTrust | None:
        return self._trusts.get((cluster, agent))

    def all(self) -> Sequence[AgentTrust]:
        return [trust for _, trust in sorted(self._trusts.items())]

    def ends(self) -> Mapping[ClusterName, datetime]:
        found: dict[ClusterName, datetime] = {}
        for trust in self._trusts.values():
            found[trust.cluster] = max(trust.not_after, found.get(trust.cluster, trust.not_after))
        return found

    def ending(self, moments: Sequence[datetime]) -> Sequence[int]:
        ends = self.ends().values()
        return [*(sum(end <= moment for end in ends) for moment in moments), len(ends)]

    def first_end(self, after: datetime) -> datetime | None:
        return min((end for end in self.ends().values() if end > after), default=None)

    def put(self, trust: AgentTrust) -> None:
        self._trusts[trust.cluster, trust.agent] = trust

    def forget(self, cluster: ClusterName) -> None:
        for place in [place for place in self._trusts if place[0] == cluster]:
            del self._trusts[place]


class MemoryFacts(Facts):
    def __init__(self, state: State) -> None:
        self._facts = state.facts

    def get(self, name: str) -> str | None:
        return self._facts.get(name)

    def set(self, name: str, value: str) -> None:
        self._facts[name] = value

    def settle(self, name: str, value: str) -> str:
        return self._facts.setdefault(name, value)


class MemoryAuditLog(AuditLog):
    def __init__(self, state: State) -> None:
        self._links = state.links
        self._anchors = state.anchors

    def add(self, links: Sequence[Link]) -> None:
        for link in links:
            if (link.replica, link.sequence) in self._links:
                raise ConflictError("the link is there already")
            self._links[link.replica, link.sequence] = link

    def head(self, replica: str) -> Head:
        chain = self._chain(replica)
        return chain[-1].head if chain else self._anchors.get(replica, Head())

    def anchors(self) -> Mapping[str, Head]:
        return self._anchors

    def replicas(self) -> Sequence[str]:
        return sorted({replica for replica, _ in self._links} | set(self._anchors))

    def links(self, replica: str, *, after: int, limit: int) -> Sequence[Link]:
        return [link for link in self._chain(replica) if link.sequence > after][:limit]

    def find(self, query: AuditQuery) -> Sequence[Link]:
        after = None if query.after is None else (query.after.at, query.after.replica, query.after.sequence)
        ordered = sorted(self._links.values(), key=_place)
        found = [link for link in ordered if selects(query, link) and (after is None or _place(link) > after)]
        return found if query.limit is None else found[: query.limit + 1]

    def trim(self, before: datetime, now: datetime, limit: int) -> int:
        gone = 0
        for replica in self.replicas():
            chain = self._chain(replica)
            written = written_by([to_micros(link.at) for link in chain], to_micros(now), lambda: None)
            for link, at in list(zip(chain, written, strict=True))[:limit]:
                if at >= to_micros(before):
                    break
                self._anchors[replica] = link.head
                del self._links[replica, link.sequence]
                gone += 1
        return gone

    def _chain(self, replica: str) -> list[Link]:
        return [self._links[place] for place in sorted(self._links) if place[0] == replica]


def _place(link: Link) -> tuple[datetime, str, int]:
    return link.at, link.replica, link.sequence


class MemoryLeaders(Leaders):
    def __init__(self, state: State, now: datetime) -> None:
        self._state = state
        self._now = now

    def record(self) -> Record | None:
        return self._state.leader

    def take(self, seen: Record | None, candidate: Candidate, lease: timedelta) -> Record:
        found = self._state.leader
        if (found and found.version) != (seen and seen.version):
            raise ConflictError("another has taken the lock")
        self._state.term += 1
        taken = Record(
            holder=candidate.identity,
            incarnation=candidate.incarnation,
            term=self._state.term,
            transitions=found.transitions + (found.holder != candidate.identity) if found else 0,
            lease=lease,
            acquired_at=self._now,
            renewed_at=self._now,
            version=_following(found),
        )
        self._state.leader = taken
        try:
            untold = succession.decoded(self._state.facts.get(succession.FACT))
        except msgspec.DecodeError:
            untold = succession.Untold()
        began = succession.Began(taken.term, taken.holder, taken.acquired_at)
        self._state.facts[succession.FACT] = succession.encoded(untold.followed_by(began))
        return taken

    def renew(self, held: Record) -> Record:
        found = self._held(held)
        if found is None:
            raise ConflictError("the lock is held by another, or in another term")
        return self._replace(found, renewed_at=self._now)

    def release(self, held: Record) -> bool:
        found = self._held(held)
        if found is not None:
            self._replace(found, holder="")
        return found is not None

    def require(self, term: int) -> None:
        if self._state.term != term:
            raise NotLeaderError("another replica leads now: the write of an earlier term was not committed")

    def _held(self, held: Record) -> Record | None:
        found = self._state.leader
        if found is None or (found.incarnation, found.term) != (held.incarnation, held.term):
            return None
        return found if found.holder else None

    def _replace(self, found: Record, **changes: Any) -> Record:
        changed = replace(found, version=_following(found), **changes)
        self._state.leader = changed
        return changed


def _following(found: Record | None) -> str:
    return str(int(found.version) + 1) if found else "1"
