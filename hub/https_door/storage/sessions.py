"""ClusterSessions: get, list and watch of the table of sessions, in which every replica writes its own sessions.

Serving this resource writes nothing. While a replica has watches, it compares a fingerprint of the table every POLL, and reads
the table after a change. One watch does this for all watches of the replica. A resourceVersion is valid only in this process.
Any other resourceVersion gives ExpiredError, so that the client lists again.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import structlog

from hub.api.hubreplicas import AgentSession
from hub.ports import Store, Transaction
from hub.registry.generic.virtual import ComputedStorage, not_found
from hub.registry.hubreplicas.resource import session_object
from machinery.apiserver.resource import Resource
from machinery.apiserver.storage import GroupResource
from machinery.errors import ExpiredError, MusterError
from machinery.identity import ClusterName
from machinery.meta.objects import ChangeType, Key, Page, Query, StoredObject, WatchEvent
from machinery.meta.timestamps import format_time
from machinery.observability.logs import LogOnce
from machinery.runtime.event_loop import until_tick

POLL = timedelta(milliseconds=500)
MAX_EVENTS = 10_000
"""Events kept in memory. A watch that is further behind ends with ExpiredError."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Logged:
    """One event of the log, and the object before it (None: there was none)."""

    event: WatchEvent
    before: StoredObject | None


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """All sessions at a revision. Revision 0: not read yet. The first read begins with the database's time as revision."""

    revision: int = 0
    sessions: Mapping[ClusterName, AgentSession] = field(default_factory=dict)
    objects: Mapping[Key, StoredObject] = field(default_factory=dict)


class SessionStorage(ComputedStorage):
    """Keeps the last snapshot of all sessions and the latest events. Reads the database only for requests and watches."""

    def __init__(self, store: Store, resource: Resource) -> None:
        super().__init__(store, resource, lambda _tx: ())
        self._now = _Snapshot()
        self._fingerprint: object = None
        self._oldest = 0
        """The revision before the first event of the log; each event increases the revision by one."""
        self._log: list[_Logged] = []
        self._reading, self._polling = asyncio.Lock(), asyncio.Lock()
        self._failure = LogOnce(log)

    async def revision(self) -> int:
        await self._refresh()
        return self._now.revision

    async def wait_for(self, revision: int) -> None:
        """Raises ExpiredError for a revision that is older than the events in memory, or that another process has returned."""
        await self._refresh()
        self._check(revision)

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        await self._refresh()
        found = self._now.objects.get(key)
        if found is None:
            return not_found(resource, key)
        last = await self._store.read(lambda tx: tx.heartbeats.of(ClusterName(key.name)))
        session = self._now.sessions.get(ClusterName(key.name))
        if last is None or last.at is None or session is None:
            return found
        shown = session_object(session, last.agent_version)
        status = {**shown.content["status"], "lastHeartbeatTime": format_time(last.at)}
        return self.stored(replace(shown, content={"status": status}), found.revision)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        del resource
        await self._refresh()
        revision = self._now.revision if query.at is None else query.at
        objects = self._objects_at(revision)
        left = [key for key in sorted(objects) if query.matches(key, {}, {}) and (query.after is None or key > query.after)]
        page = tuple(objects[key] for key in left[: query.limit])
        return Page(page, revision, page[-1].key if len(left) > len(page) else None)

    @asynccontextmanager
    async def watch(
        self, resource: GroupResource, query: Query, *, after: int
    ) -> AsyncIterator[AsyncIterator[WatchEvent | int]]:
        del resource
        await self._refresh()
        self._check(after)
        async with aclosing(self._events(query, after)) as events:
            yield events

    async def _events(self, query: Query, after: int) -> AsyncGenerator[WatchEvent | int]:
        while True:
            self._check(after)
            for logged in self._log[after - self._oldest :]:
                after = logged.event.stored.revision
                if query.matches(logged.event.stored.key, {}, {}):
                    yield logged.event
            yield after
            # one watch polls; the other watches wait for the lock and use the result
            async with self._polling:
                if after == self._now.revision:
                    await asyncio.sleep(until_tick(POLL))
                    await self._poll()

    async def _poll(self) -> None:
        try:
            await self._refresh()
        except MusterError as error:
            self._failure.warning("sessions cannot be read for watches", error.message)
        else:
            self._failure.reset()

    async def _refresh(self) -> None:
        """Read what has changed. Raises UnavailableError."""
        async with self._reading:
            fingerprint = await self._store.read(lambda tx: tx.agent_sessions.fingerprint())
            if self._now.revision and fingerprint == self._fingerprint:
                return
            first = not self._now.revision
            self._now, events = await self._store.read(self._next)
            self._fingerprint = fingerprint
            self._oldest = self._now.revision if first else self._oldest
            self._log += events
            if (excess := len(self._log) - MAX_EVENTS) > 0:
                self._log, self._oldest = self._log[excess:], self._oldest + excess

    def _next(self, tx: Transaction) -> tuple[_Snapshot, Sequence[_Logged]]:
        """The current snapshot, and the events since the previous one (none for the first). Runs on a thread of the store."""
        before = self._now
        # if a cluster has several agents, the newest session counts
        found = {each.cluster: each for each in sorted(tx.agent_sessions.all(), key=lambda each: (each.at, each.session))}
        opened = sorted(cluster for cluster, session in found.items() if before.sessions.get(cluster) != session)
        versions = {beat.cluster: beat.agent_version for beat in tx.heartbeats.all(opened)}
        if not before.revision:
            revision = round(tx.now.timestamp() * 1_000_000)
            objects = [self.stored(session_object(found[cluster], versions.get(cluster)), revision) for cluster in opened]
            return _Snapshot(revision, found, {each.key: each for each in objects}), ()
        revision, left, events = before.revision, dict(before.objects), []
        for cluster in sorted(before.sessions.keys() - found.keys()):
            revision, old = revision + 1, left.pop(Key("", cluster))
            version = old.document["status"].get("agentVersion")
            ended = session_object(before.sessions[cluster], version, connected=False)
            events.append(_Logged(WatchEvent(ChangeType.DELETED, self.stored(ended, revision)), old))
        for cluster in opened:
            revision += 1
            stored = self.stored(session_object(found[cluster], versions.get(cluster)), revision)
            kind = ChangeType.MODIFIED if stored.key in left else ChangeType.ADDED
            events.append(_Logged(WatchEvent(kind, stored), left.get(stored.key)))
            left[stored.key] = stored
        return _Snapshot(revision, found, left), events

    def _objects_at(self, revision: int) -> Mapping[Key, StoredObject]:
        """The objects at a revision, for the later pages of a list. Raises ExpiredError."""
        self._check(revision)
        objects = dict(self._now.objects)
        for logged in reversed(self._log[revision - self._oldest :]):
            key = logged.event.stored.key
            if logged.before is None:
                del objects[key]
            else:
                objects[key] = logged.before
        return objects

    def _check(self, revision: int) -> None:
        """Raises ExpiredError for a revision that is older than the log, or of another process."""
        if not self._oldest <= revision <= self._now.revision:
            raise ExpiredError(f"too old resource version: {revision} ({self._oldest}); list the sessions again")
