"""Open sessions of this process, in memory and, shortly after they open, in the database.

An agent has one session. A newer session ends the older one: immediately if this process has both; if another replica has the
newer one, within half a second, by a notification. While notifications do not work, the database is read twice a second.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from hub.api.auditrecords import AuditEntry
from hub.api.hubreplicas import AgentSession
from hub.api.managedclusters.duplicates import second_agent_error
from hub.heartbeat.buffer import PASSING
from hub.ports import Store, Transaction
from hub.registry.hubreplicas import service as replicas
from hub.registry.hubreplicas.service import Opened
from hub.registry.liveness.heartbeats import stale_epoch_error
from machinery.errors import ConflictError, MusterError
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.observability.logs import LogOnce
from machinery.runtime.backoff import Backoff
from machinery.runtime.event_loop import until_tick

POLL = timedelta(milliseconds=500)
NOTIFIED_POLL = timedelta(seconds=5)
"""Longest interval between reads while notifications work."""
OVERLAP = timedelta(seconds=15)
"""Each read also covers this time before the last read: transactions that began before that read may commit after it."""

log = structlog.get_logger(__name__)


class OpenSession(Protocol):
    """The interface of an open session for other parts of the hub."""

    id: str
    cluster: ClusterName
    agent: AgentId
    agent_version: str
    serial: SerialNumber
    epoch: int

    def end(self, error: MusterError) -> None:
        """Ends the session with this error's status."""

    def drain(self, reconnect_after: timedelta, reason: str = ...) -> None:
        """Asks the agent to open a new session within `reconnect_after` and to leave this session."""


_Records = dict[tuple[ClusterName, AgentId], Opened | str]
"""Records to write: an opened session, or the id of an ended one."""


class Sessions:
    """Sessions of a replica, one per cluster. A newer session of an agent replaces the older. `replica`: the replica's name."""

    def __init__(self, store: Store, replica: str = "") -> None:
        self._store = store
        self._replica = replica
        self._open: dict[ClusterName, OpenSession] = {}
        self._recorded: dict[ClusterName, AgentSession] = {}
        """The records of the open sessions, once they are written."""
        self._unwritten: _Records = {}
        self._entries: Sequence[AuditEntry] = ()
        """Audit records of opened sessions, to be written in the transaction that writes the sessions."""
        self._waiting = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._since: datetime | None = None
        self._write_failure, self._read_failure = LogOnce(log), LogOnce(log)
        self._pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=2))
        self.opened = self.superseded = self.drained = 0
        """Counts since the start: sessions opened, superseded by a newer session of the same agent, and asked to leave."""

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> tuple[OpenSession, ...]:
        return tuple(self._open.values())

    async def none(self) -> None:
        """Waits until no session is open."""
        await self._empty.wait()

    def add(self, session: OpenSession) -> None:
        """Adds a session. The first agent of a cluster keeps the cluster while its session is open.

        Raises StaleEpochError if the agent's open session has a higher epoch; AlreadyExistsError if another agent of the
        cluster has an open session.
        """
        older = self._open.get(session.cluster)
        if older is not None and older.agent != session.agent:
            raise second_agent_error(session.cluster, older.agent, session.agent)
        if older is not None and 0 < session.epoch < older.epoch:
            raise stale_epoch_error(older.epoch)
        self._empty.clear()
        self._open[session.cluster] = session
        self._recorded.pop(session.cluster, None)
        self.opened += 1
        if older is not None:
            self.superseded += 1
            older.end(_superseded_error())
        self._queue(session, self._opened(session))

    def write_with(self, entry: AuditEntry) -> None:
        """Queues the audit record of an opened session for the transaction that writes the session."""
        self._entries = (*self._entries, entry)
        self._waiting.set()

    def remove(self, session: OpenSession) -> None:
        """Removes a session. Does nothing if it was superseded or never added."""
        if self._open.get(session.cluster) is not session:
            return
        del self._open[session.cluster]
        self._recorded.pop(session.cluster, None)
        if not self._open:
            self._empty.set()
        self._queue(session, session.id)

    def rewrite_all(self) -> None:
        """Writes all open sessions again, after other replicas declared this replica lost and removed its sessions."""
        for cluster, session in self._open.items():
            recorded = self._recorded.get(cluster)
            self._queue(session, self._opened(session, recorded.at if recorded else None))

    async def run(self) -> None:
        """Until cancelled, writes opened and ended sessions. One transaction writes all waiting records."""
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            await self.write()

    async def write(self) -> None:
        """Writes the waiting records. After a temporary error (`PASSING`), `run` writes the records again after a pause.

        If the transaction is rejected, each session is written on its own. A session that is rejected then stays open, but is
        not stored, so that it does not block others.
        """
        batches = [(self._unwritten, self._entries)]
        self._unwritten, self._entries = {}, ()
        failure: MusterError | None = None
        while batches and failure is None:
            records, entries = batches.pop(0)
            try:
                for recorded in await self._store.run(_write, records, entries):
                    session = self._open.get(recorded.cluster)
                    if session is not None and session.id == recorded.session:
                        self._recorded[recorded.cluster] = recorded
            except MusterError as error:
                if isinstance(error, PASSING) or not records:
                    batches.insert(0, (records, entries))
                    failure = error
                elif len(records) == 1 and not entries:
                    cluster = next(iter(records))[0]
                    log.error("a session is rejected and not stored", cluster=cluster, error=error.message)  # noqa: TRY400 - no defect
                else:
                    batches = [({place: record}, ()) for place, record in _in_order(records)]
                    batches += [({}, entries)] if entries else []
        if failure is None:
            self._pauses.reset()
            if self._write_failure.reset():
                log.info("open sessions are stored again")
            return
        self._write_failure.warning("open sessions cannot be stored", failure.message)
        for records, entries in reversed(batches):
            self._unwritten, self._entries = records | self._unwritten, (*entries, *self._entries)
        await asyncio.sleep(self._pauses.next().total_seconds())
        self._waiting.set()

    async def follow_others(self) -> None:
        """Until cancelled, ends sessions of this replica that newer sessions on other replicas supersede."""
        notified = asyncio.Event()
        with self._store.subscribe_to_sessions(notified.set) as is_connected:
            while True:
                notified.clear()
                await self.poll()
                if is_connected() and not self._read_failure.text:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(NOTIFIED_POLL.total_seconds()):
                            await notified.wait()
                await asyncio.sleep(until_tick(POLL))

    async def poll(self) -> None:
        """Reads sessions that other replicas have opened since the last read. Ends sessions here that conflict with them."""
        try:
            now, opened = await self._store.look(replicas.opened_since, self._since, but=self._replica)
        except MusterError as error:
            self._read_failure.warning("sessions of other replicas cannot be read", error.message)
            return
        if self._read_failure.reset():
            log.info("sessions of other replicas are read again")
        self._since = now - OVERLAP  # may decrease, if the database's clock was set back
        for other in opened:
            session, recorded = self._open.get(other.cluster), self._recorded.get(other.cluster)
            if session is None or recorded is None:  # an unwritten session has no time to compare
                continue
            if other.agent != session.agent:  # both opened together: the first agent keeps the cluster
                if recorded.is_newer_than(other.session, other.at):
                    session.end(second_agent_error(other.cluster, other.agent, session.agent))
            elif other.is_newer_than(session.id, recorded.at):  # the newest session of an agent counts
                self.superseded += 1
                session.end(_superseded_error())

    def _opened(self, session: OpenSession, at: datetime | None = None) -> Opened:
        version = session.agent_version
        return Opened(session.cluster, session.agent, session.id, version, self._replica, at, session.epoch)

    def _queue(self, session: OpenSession, record: Opened | str) -> None:
        self._unwritten[session.cluster, session.agent] = record
        self._waiting.set()


def _superseded_error() -> ConflictError:
    return ConflictError("superseded: the same agent has opened a newer session")


def _write(tx: Transaction, records: _Records, entries: Sequence[AuditEntry]) -> list[AgentSession]:
    """Writes the records of opened and ended sessions. Returns those of the opened sessions."""
    recorded = []
    if entries:
        tx.audit.add(entries)
    for place, record in _in_order(records):
        if isinstance(record, Opened):
            recorded.append(replicas.open_session(tx, record))
        else:
            replicas.close_session(tx, *place, record)
    return recorded


def _in_order(records: _Records) -> Sequence[tuple[tuple[ClusterName, AgentId], Opened | str]]:
    """Sorts by names, so that two replicas never wait for each other's locks.

    For each cluster, ended sessions come first, so that an agent with a new id is not counted twice.
    """
    return sorted(records.items(), key=lambda item: (item[0][0], isinstance(item[1], Opened), item[0][1]))
