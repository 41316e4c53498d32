"""A store in memory: the trick is that a transaction works on a copy, which takes the original's place at the commit."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, Concatenate, ParamSpec, TypeVar

from hub.domain import document as doc
from hub.domain.change import MANAGED_CLUSTERS, Change, ChangeType, Key, Kind, ObjectPage, Query, StoredObject
from hub.domain.history import BYTES_OF_A_ROW, Ledger, Trimmed, Volume, is_remembered
from hub.domain.order import Facet
from hub.domain.selection import fields_of, known_of, portion
from hub.ports import Changes, Leaders, Lifeline, Objects, Store, Transaction, Written
from hub.ports.objects import EVERYTHING
from hub.store.ages import written_by
from hub.store.encoding import encode, encode_values
from hub.store.instants import to_micros
from hub.store.wakes import Wake, Wakes
from machinery.clock import Clock, SystemClock
from machinery.errors import AlreadyExistsError, ConflictError, ExpiredError, UnavailableError
from machinery.identity import ClusterName
from tests.fakes.memory_tables import (
    MemoryAgentSessions,
    MemoryAuditLog,
    MemoryAuthorities,
    MemoryBindings,
    MemoryCertificates,
    MemoryCredentials,
    MemoryFacts,
    MemoryHeartbeats,
    MemoryLeaders,
    MemoryMarks,
    MemoryReplicas,
    MemoryTransitions,
    MemoryTrusts,
    Place,
    State,
)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class MemoryWrite(Written):
    kind: Kind
    type: ChangeType
    document: dict[str, Any]
    seen: StoredObject
    before: StoredObject | None
    actor: str
    result: StoredObject | None = None

    @property
    def stored(self) -> StoredObject:
        if self.result is None:
            raise RuntimeError("the transaction has not committed yet")
        return self.result


class MemoryTransaction(Transaction, Objects, Changes):
    def __init__(self, state: State, now: datetime, *, writable: bool) -> None:
        self.state = state
        self._now = now
        self._writable = writable
        self.writes: list[MemoryWrite] = []
        self._certificates = MemoryCertificates(state)
        self._authorities = MemoryAuthorities(state)
        self._credentials = MemoryCredentials(state)
        self._bindings = MemoryBindings(state)
        self._heartbeats = MemoryHeartbeats(state, now)
        self._transitions = MemoryTransitions(state)
        self._marks = MemoryMarks(state)
        self._replicas = MemoryReplicas(state)
        self._agent_sessions = MemoryAgentSessions(state)
        self._trusts = MemoryTrusts(state)
        self._facts = MemoryFacts(state)
        self._audit = MemoryAuditLog(state)
        self._leaders = MemoryLeaders(state, now)

    @property
    def now(self) -> datetime:
        return self._now

    @property
    def objects(self) -> Objects:
        return self

    @property
    def changes(self) -> Changes:
        return self

    @property
    def certificates(self) -> "MemoryCertificates":
        return self._certificates

    @property
    def authorities(self) -> "MemoryAuthorities":
        return self._authorities

    @property
    def credentials(self) -> "MemoryCredentials":
        return self._credentials

    @property
    def bindings(self) -> "MemoryBindings":
        return self._bindings

    @property
    def heartbeats(self) -> "MemoryHeartbeats":
        return self._heartbeats

    @property
    def transitions(self) -> "MemoryTransitions":
        return self._transitions

    @property
    def marks(self) -> "MemoryMarks":
        return self._marks

    @property
    def replicas(self) -> "MemoryReplicas":
        return self._replicas

    @property
    def agent_sessions(self) -> "MemoryAgentSessions":
        return self._agent_sessions

    @property
    def trusts(self) -> "MemoryTrusts":
        return self._trusts

    @property
    def facts(self) -> "MemoryFacts":
        return self._facts

    @property
    def audit(self) -> "MemoryAuditLog":
        return self._audit

    @property
    def leaders(self) -> "MemoryLeaders":
        return self._leaders

    def get(self, kind: Kind, key: Key) -> StoredObject | None:
        return self.state.objects.get((kind, key))

    def read_ahead(self, kind: Kind, keys: Collection[Key]) -> None:
        """Everything is in memory already."""
        del kind, keys

    def find(self, kind: Kind, query: Query) -> ObjectPage:
        past = query.at is not None and query.at != self.state.revision
        objects = self._objects_at(query.at or 0, past=query.past) if past else self.state.objects
        found = portion(query, (stored for (of, _), stored in objects.items() if of == kind), self.state.beats)
        counted = found.rest if found.rest and (past or not (query.labels or query.fields)) else None
        revision = query.at if past and query.at else self.state.revision
        return ObjectPage(found.items, revision, found.rest > 0, counted, found.place)

    def groups(self, query: Query, facets: Sequence[Facet]) -> Mapping[tuple[str | None, ...], int]:
        chosen = self.find(MANAGED_CLUSTERS, replace(query, limit=None, at=None, order=None, after=None)).items
        seen = (known_of(MANAGED_CLUSTERS, each.document, self.state.beats.get(ClusterName(each.key.name))) for each in chosen)
        return Counter(tuple(facet.text(known) for facet in facets) for known in seen)

    def has_any(self, kind: Kind) -> bool:
        return any(of == kind for of, _ in self.state.objects)

    def count(self, kind: Kind, query: Query) -> int:
        return len(self.find(kind, replace(query, limit=None, at=None)).items)

    def tally(self, kind: Kind, field: str) -> Mapping[str, int]:
        stored = (each for (of, _), each in self.state.objects.items() if of == kind)
        return Counter(fields_of(kind, each.document).get(field, "") for each in stored)

    def values(self, kind: Kind, field: str) -> Mapping[Key, str]:
        stored = (each for (of, _), each in self.state.objects.items() if of == kind)
        found = {each.key: fields_of(kind, each.document).get(field, "") for each in stored}
        return {key: value for key, value in found.items() if value}

    def written_before(self, kind: Kind, moment: datetime, limit: int) -> Mapping[Key, int]:
        at = {change.revision: change.at for change in self.state.log}
        of_kind = [stored for (each, _), stored in self.state.objects.items() if each == kind]
        old = [stored for stored in of_kind if stored.revision in at and at[stored.revision] < moment]
        return {stored.key: stored.revision for stored in sorted(old, key=lambda stored: stored.revision)[:limit]}

    def _objects_at(self, revision: int, *, past: bool) -> dict[Place, StoredObject]:
        if past:
            self._check_remembered(revision)
        else:
            self._check_kept(revision)
        objects: dict[Place, StoredObject] = {}
        for change in self.state.log:
            if change.revision > revision:
                break
            place = (change.kind, change.key)
            objects.pop(place, None)
            if change.type is not ChangeType.DELETED:
                objects[place] = StoredObject(change.kind, change.key, "", change.revision, change.encoded)
        return {
            place: replace(stored, uid=str(stored.document["metadata"]["uid"]), _decoded=[])
            for place, stored in objects.items()
        }

    def put(self, kind: Kind, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
        key = doc.key(new)
        self._guard(kind, key, old)
        seen = StoredObject(kind, key, str(new["metadata"]["uid"]), 0, encode(new, None))
        self.state.objects[kind, key] = seen
        for write in self.writes:
            if write.seen is old and write.type is not ChangeType.DELETED:
                write.document, write.seen, write.actor = new, seen, actor
                return write
        self.writes.append(MemoryWrite(kind, ChangeType.MODIFIED if old else ChangeType.ADDED, new, seen, old, actor))
        return self.writes[-1]

    def delete(self, kind: Kind, old: StoredObject, actor: str) -> Written:
        self._guard(kind, old.key, old)
        del self.state.objects[kind, old.key]
        self.writes.append(MemoryWrite(kind, ChangeType.DELETED, dict(old.document), old, old, actor))
        return self.writes[-1]

    def _guard(self, kind: Kind, key: Key, old: StoredObject | None) -> None:
        if not self._writable:
            raise RuntimeError("a query does not write")
        current = self.get(kind, key)
        if old is None and current is not None:
            raise AlreadyExistsError(f'{kind} "{key.name}" already exists')
        if old is not None and (current is None or (current.uid, current.revision) != (old.uid, old.revision)):
            raise ConflictError(f'{kind} "{key.name}" has been modified')

    def flush(self) -> None:
        for write in self.writes:
            self.state.revision += 1
            revision, key, kind = self.state.revision, write.seen.key, write.kind
            write.result = StoredObject(kind, key, write.seen.uid, revision, encode(write.document, revision))
            if write.type is not ChangeType.DELETED and self.state.objects.get((kind, key)) is write.seen:
                self.state.objects[kind, key] = write.result
            before = write.before.document if write.before else None
            self.state.log.append(
                Change(
                    revision=revision,
                    at=self._now,
                    actor=write.actor,
                    kind=kind,
                    key=key,
                    type=write.type,
                    encoded=write.result.encoded,
                    labels_before=doc.labels(before) if before else {},
                    fields_before=fields_of(kind, before) if before else {},
                )
            )

    def since(
        self,
        revision: int,
        *,
        kinds: Collection[Kind] | None = None,
        namespace: str | None = None,
        name: str | None = None,
        limit: int = 500,
    ) -> Sequence[Change]:
        self._check_kept(revision)
        log = [c for c in self.state.log if c.revision > revision and (kinds is None or c.kind in kinds)]
        return [c for c in log if namespace in (None, c.key.namespace) and name in (None, c.key.name)][:limit]

    def of(self, kind: Kind, key: Key, *, since: datetime) -> Sequence[Change]:
        same = [change for change in self.state.log if (change.kind, change.key) == (kind, key)]
        before = [change for change in same if change.at < since]
        return [*before[-1:], *same[len(before) :]]

    def past(self, kind: Kind, key: Key, *, below: int | None = None, limit: int) -> Sequence[Change]:
        same = [change for change in self.state.log if (change.kind, change.key) == (kind, key)]
        return [change for change in reversed(same) if below is None or change.revision < below][:limit]

    def one_at(self, kind: Kind, key: Key, at: int) -> StoredObject | None:
        return self._objects_at(at, past=True).get((kind, key))

    def position(self, moment: datetime) -> int:
        position = max((change.revision for change in self.state.log if change.at <= moment), default=0)
        self._check_remembered(position)
        return position

    def instant(self, revision: int) -> datetime | None:
        self._check_remembered(revision)
        return max(((c.revision, c.at) for c in self.state.log if c.revision <= revision), default=(0, None))[1]

    def began(self) -> datetime | None:
        return next((change.at for change in self.state.log if change.revision > self.state.floor), None)

    def ledger(self) -> Ledger:
        counted = sum(_weight(change) for change in self.state.log if change.revision <= self.state.measured)
        return Ledger(self.state.compacted, self.state.floor, self.state.measured, counted)

    def _check_remembered(self, revision: int) -> None:
        if revision < self.state.floor:
            raise ExpiredError(f"the past is remembered from revision {self.state.floor} on")
        if revision > self.state.revision:
            raise ExpiredError(f"{revision} is above the newest revision, {self.state.revision}")

    def _check_kept(self, revision: int) -> None:
        if revision < self.state.compacted:
            raise ExpiredError(f"changes up to {self.state.compacted} are forgotten")
        if revision > self.state.revision:
            raise ExpiredError(f"{revision} is above the newest revision, {self.state.revision}")

    def newest(self) -> int:
        return self.state.revision

    def oldest(self) -> int:
        return self.state.compacted

    def compact(self, before: datetime, *, limit: int = EVERYTHING) -> Trimmed:
        self.state.compacted, trimmed = self._trimmed(self.state.compacted, before, limit, lambda kind: not is_remembered(kind))
        self.state.log[:] = [
            replace(change, labels_before={}, fields_before={}) if change.revision <= self.state.compacted else change
            for change in self.state.log
        ]
        return trimmed

    def forget(self, before: datetime | None, *, limit: int = EVERYTHING) -> Trimmed:
        self.state.floor, trimmed = self._trimmed(self.state.floor, before, limit, is_remembered, self.state.compacted)
        return trimmed

    def measure(self, *, limit: int = EVERYTHING) -> bool:
        waiting = [change.revision for change in self.state.log if change.revision > self.state.measured]
        self.state.measured = max(waiting[:limit], default=self.state.measured)
        return len(waiting) >= limit

    def volume(self) -> Volume:
        return Volume(sum(_weight(change) for change in self.state.log), free=self.state.free)

    def _trimmed(
        self, bound: int, before: datetime | None, limit: int, forgets: Callable[[Kind], bool], end: int = EVERYTHING
    ) -> tuple[int, Trimmed]:
        """Where the bound is then."""
        waiting = [change for change in self.state.log if change.revision > bound]
        written = written_by([to_micros(change.at) for change in waiting], to_micros(self._now), lambda: None)
        ages = list(zip(waiting, written, strict=True))[:limit]
        old = takewhile(lambda each: before is None or each[1] < to_micros(before), ages)
        passed = [change for change, _ in old]
        point = min(max((change.revision for change in passed), default=bound), end)
        last = {(change.kind, change.key): change for change in self.state.log if change.revision <= point}
        kept = [
            change
            for change in self.state.log
            if change.revision > point
            or not forgets(change.kind)
            or (last[change.kind, change.key] is change and change.type is not ChangeType.DELETED)
        ]
        rows = len(self.state.log) - len(kept)
        self.state.log[:] = kept
        return point, Trimmed(rows, len(passed) == limit and point < end)


def _weight(change: Change) -> int:
    before = encode_values(change.labels_before), encode_values(change.fields_before)
    return len(change.encoded) + sum(map(len, before)) + BYTES_OF_A_ROW


class MemoryStore(Store):
    """Needs no opening; `clock` is the database's time, `failure` is raised by whatever asks for the database next."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.state = State()
        self.failure: Exception | None = None
        self._clock = clock or SystemClock()
        self._changed = asyncio.Event()
        self._revocations = Wakes()
        self._closed = False

    def transact(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`run` without an event loop."""
        self._check_open()
        transaction = MemoryTransaction(self.state.copied(), self._clock.now(), writable=True)
        result = use_case(transaction, *args, **kwargs)
        transaction.flush()
        revoked = transaction.state.revocations > self.state.revocations
        self.state = transaction.state
        if revoked:
            self._revocations.wake()
        if transaction.writes:
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
        return result

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the store is closed")
        if self.failure is not None:
            raise self.failure

    async def run(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.transact(use_case, *args, **kwargs)

    async def read(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        return query(MemoryTransaction(self.state, self._clock.now(), writable=False), *args, **kwargs)

    async def wait_for_change(self, after: int, within: timedelta) -> int:
        try:
            async with asyncio.timeout(within.total_seconds()):
                while self.state.revision <= after:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self.state.revision

    async def follow(self, after: int, kinds: Collection[Kind] | None = None) -> AsyncIterator[Sequence[Change]]:
        while True:
            changes = await self.read(_since, after)
            if not changes:
                yield ()
                while self.state.revision <= after:
                    await self._changed.wait()
                continue
            after = changes[-1].revision
            if chosen := tuple(change for change in changes if kinds is None or change.kind in kinds):
                yield chosen

    @contextmanager
    def told_of_revocations(self, wake: Wake) -> Iterator[Callable[[], bool]]:
        with self._revocations.woken(wake):
            yield lambda: True

    @contextmanager
    def told_of_sessions(self, wake: Wake) -> Iterator[Callable[[], bool]]:
        """There are no other replicas, and nobody rings."""
        del wake
        yield lambda: False

    async def check(self) -> None:
        self._check_open()

    async def close(self) -> None:
        self._closed = True


def _since(transaction: Transaction, after: int) -> Sequence[Change]:
    return transaction.changes.since(after)


class MemoryLifeline(Lifeline):
    """A way to the same state that a `failure` of the store does not concern."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._closed = False

    async def ask(self, use_case: Callable[[Leaders], T]) -> T:
        if self._closed:
            raise UnavailableError("the connection for the election is closed")
        return self._store.transact(lambda tx: use_case(tx.leaders))

    async def close(self) -> None:
        self._closed = True
