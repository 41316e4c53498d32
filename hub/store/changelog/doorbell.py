"""Word from other replicas that something was committed: PostgreSQL's NOTIFY, heard on a connection of its own.

It says that there is something to look for, never what, and nobody relies on it: whoever is woken also looks by himself from
time to time. So a bell that cannot be heard for a while, or never (through a pooler of connections, say), delays but loses
nothing.
"""

import asyncio
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import psycopg
import structlog
from sqlalchemy import URL

from hub.store.changelog.callbacks import Wake, Wakes
from hub.store.engine.notify import CHANNEL, Topic
from hub.store.engine.postgres import connection_arguments
from hub.store.engine.timeouts import SessionLimits
from machinery.runtime.backoff import Backoff

log = structlog.get_logger(__name__)


class Doorbell:
    """`run` must be running for anybody to be woken. Belongs to one event loop."""

    def __init__(self, url: URL, limits: SessionLimits, ringer: str) -> None:
        """`ringer`: whose own commits wake nobody here."""
        self._arguments = connection_arguments(url, limits)
        self._patience = limits.patience
        self._ringer = ringer
        self._wakes: dict[Topic, Wakes] = {}
        self._heard = self._proven = False
        self._pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=2))

    @property
    def heard(self) -> bool:
        """Whether the bell can be heard now."""
        return self._heard

    @property
    def proven(self) -> bool:
        """Whether our own commits were heard on this connection, which no pooler in between lets through by chance."""
        return self._heard and self._proven

    def woken(self, topic: Topic, wake: Wake) -> AbstractContextManager[None]:
        """Within the block `wake` is called after every commit of others that is about `topic`, and perhaps more often."""
        return self._wakes.setdefault(topic, Wakes()).woken(wake)

    async def run(self) -> None:
        """Listens for ever; a connection that is lost is made again."""
        while True:
            try:
                await self._listen()
            except (psycopg.Error, OSError, TimeoutError) as error:
                # the driver's words may hold the user's name and the server's address, never the password; the log has them
                if self._heard:
                    log.warning("other replicas are not heard at once any more", error=str(error).strip() or "no answer")
                self._heard = self._proven = False
                self._wake_all()  # who counted on the bell looks by himself again
                await asyncio.sleep(self._pauses.next().total_seconds())

    async def _listen(self) -> None:
        async with asyncio.timeout(self._patience):
            connection = await psycopg.AsyncConnection.connect(**self._arguments, autocommit=True)
        async with connection:
            await self._ask(connection, f"LISTEN {CHANNEL}")
            self._heard = True
            self._pauses.reset()
            self._wake_all()  # what was rung before is not told again
            while True:
                async for notice in connection.notifies(timeout=self._patience):
                    self._hear(notice.payload)
                await self._ask(connection, "SELECT 1")  # silence may mean that the server stands still

    async def _ask(self, connection: psycopg.AsyncConnection[Any], question: str) -> None:
        async with asyncio.timeout(self._patience):
            await connection.execute(question.encode())

    def _hear(self, payload: str) -> None:
        topic, _, ringer = payload.partition(" ")
        self._proven = self._proven or ringer == self._ringer
        if ringer != self._ringer and (wakes := self._wakes.get(Topic(topic))):
            wakes.wake()

    def _wake_all(self) -> None:
        for wakes in tuple(self._wakes.values()):
            wakes.wake()
