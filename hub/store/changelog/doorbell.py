"""Receives PostgreSQL's notifications (NOTIFY) about commits of other replicas, on a separate connection.

A notification names only a topic and may be lost, so all receivers also poll. If notifications fail or never work (for example
through a connection pooler), changes are late but not lost.
"""

import asyncio
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import psycopg
import structlog
from sqlalchemy import URL

from hub.store.engine.notify import CHANNEL, Topic, Wake, WakeCallbacks
from hub.store.engine.postgres import connection_arguments
from hub.store.engine.timeouts import SessionLimits
from machinery.runtime.backoff import Backoff

log = structlog.get_logger(__name__)


class Doorbell:
    """Wakes callbacks while `run` is running. Belongs to one event loop."""

    def __init__(self, url: URL, limits: SessionLimits, sender: str) -> None:
        """`sender`: this replica, whose own commits wake no callback."""
        self._arguments = connection_arguments(url, limits)
        self._patience = limits.patience
        self._sender = sender
        self._wakes: dict[Topic, WakeCallbacks] = {}
        self._listens = self._proven = False
        self._pauses = Backoff(timedelta(milliseconds=100), timedelta(seconds=2))

    @property
    def is_proven(self) -> bool:
        """Whether notifications of this replica's own commits have arrived, which proves that no pooler is in between."""
        return self._listens and self._proven

    def registered(self, topic: Topic, wake: Wake) -> AbstractContextManager[None]:
        """During the block, call `wake` after each commit of other replicas about `topic`, and possibly more often."""
        return self._wakes.setdefault(topic, WakeCallbacks()).registered(wake)

    async def run(self) -> None:
        """Listen until cancelled, reconnecting after errors."""
        while True:
            try:
                await self._listen()
            except (psycopg.Error, OSError, TimeoutError) as error:
                # the driver's messages may contain the user name and the server address, but never the password
                if self._listens:
                    log.warning(
                        "notifications of other replicas do not arrive any more", error=str(error).strip() or "no answer"
                    )
                self._listens = self._proven = False
                self._wake_all()  # callbacks that relied on the bell poll again
                await asyncio.sleep(self._pauses.next().total_seconds())

    async def _listen(self) -> None:
        async with asyncio.timeout(self._patience):
            connection = await psycopg.AsyncConnection.connect(**self._arguments, autocommit=True)
        async with connection:
            await self._ask(connection, f"LISTEN {CHANNEL}")
            self._listens = True
            self._pauses.reset()
            self._wake_all()  # earlier notifications are not repeated
            while True:
                async for notice in connection.notifies(timeout=self._patience):
                    self._receive(notice.payload)
                await self._ask(connection, "SELECT 1")  # after a silence, check that the server still answers

    async def _ask(self, connection: psycopg.AsyncConnection[Any], question: str) -> None:
        async with asyncio.timeout(self._patience):
            await connection.execute(question.encode())

    def _receive(self, payload: str) -> None:
        topic, _, sender = payload.partition(" ")
        self._proven = self._proven or sender == self._sender
        if sender != self._sender and (wakes := self._wakes.get(Topic(topic))):
            wakes.wake()

    def _wake_all(self) -> None:
        for wakes in tuple(self._wakes.values()):
            wakes.wake()
