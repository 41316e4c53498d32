"""Which sessions are open, and word of it to the database: in memory at once, in the database as soon as it can be written."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog

from hub.ports import Store, Transaction
from hub.services import heartbeats
from machinery.backoff import Backoff
from machinery.errors import ConflictError, MusterError
from machinery.identity import AgentId, ClusterName, SerialNumber

log = structlog.get_logger(__name__)


class OpenSession(Protocol):
    """A session, as others may touch it."""

    @property
    def id(self) -> str: ...
    @property
    def cluster(self) -> ClusterName: ...
    @property
    def agent(self) -> AgentId: ...
    @property
    def agent_version(self) -> str: ...
    @property
    def serial(self) -> SerialNumber: ...

    def end(self, error: MusterError) -> None:
        """Ends it from inside its handler with this error's status."""

    def drain(self, reconnect_after: timedelta) -> None:
        """Tells the agent to leave soon."""


@dataclass(frozen=True, slots=True)
class _Word:
    """What the database is to know: a session has opened, or the one with this id has ended."""

    session: str
    opened: bool
    agent_version: str = ""


class Sessions:
    """All sessions of this process: at most one per cluster and agent, the newer one supersedes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[tuple[ClusterName, AgentId], OpenSession] = {}
        self._words: dict[ClusterName, _Word] = {}
        self._spoken = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=2))

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> tuple[OpenSession, ...]:
        return tuple(self._open.values())

    async def none(self) -> None:
        """Returns when no session is open."""
        await self._empty.wait()

    def add(self, session: OpenSession) -> None:
        self._empty.clear()
        older = self._open.get((session.cluster, session.agent))
        self._open[session.cluster, session.agent] = session
        if older is not None:
            older.end(ConflictError("superseded: the same agent has opened a newer session"))
        self._say(session.cluster, _Word(session.id, opened=True, agent_version=session.agent_version))

    def remove(self, session: OpenSession) -> None:
        if self._open.get((session.cluster, session.agent)) is session:
            del self._open[session.cluster, session.agent]
        if not self._open:
            self._empty.set()
        word = self._words.get(session.cluster)
        if word is None or word.session == session.id:
            self._say(session.cluster, _Word(session.id, opened=False))

    async def run(self) -> None:
        """Writes down what opened and ended, for ever; everything that has come together in one transaction."""
        while True:
            await self._spoken.wait()
            self._spoken.clear()
            await self.write()

    async def write(self) -> None:
        """Writes what is not yet written. What cannot be written now is tried again after a pause."""
        words, self._words = self._words, {}
        try:
            await self._store.run(_write, words)
            self._pauses.reset()
        except MusterError as error:
            log.warning("open sessions cannot be written down", error=error.message)
            self._words = words | self._words
            await asyncio.sleep(self._pauses.next().total_seconds())
            self._spoken.set()

    def _say(self, cluster: ClusterName, word: _Word) -> None:
        self._words[cluster] = word
        self._spoken.set()


def _write(tx: Transaction, words: Mapping[ClusterName, _Word]) -> None:
    for cluster, word in sorted(words.items()):
        if word.opened:
            heartbeats.open_session(tx, cluster, word.session, word.agent_version)
        else:
            heartbeats.close_session(tx, cluster, word.session)
