"""Informer: reads a state once, then follows its log of changes without a gap."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

import structlog

from machinery.errors import ExpiredError, MusterError
from machinery.observability.logs import LogOnce
from machinery.runtime.backoff import Backoff

log = structlog.get_logger(__name__)


class LogEntry(Protocol):
    """A change in a log."""

    @property
    def revision(self) -> int: ...


C = TypeVar("C", bound=LogEntry)


class Informer(Generic[C]):
    """Calls `on_sync` at the start and after a compaction of the log, and `on_changes` with all changes after that, in order.

    `on_sync`: reads the state and returns the revision from which changes follow. `follow`: yields the changes after a
    revision. `name`: names the informer in the log. After an error the informer resumes at its position, or calls `on_sync`
    again if `resyncs_after_errors`.
    """

    def __init__(
        self,
        name: str,
        follow: Callable[[int], AsyncIterator[Sequence[C]]],
        on_sync: Callable[[], Awaitable[int]],
        on_changes: Callable[[Sequence[C]], Awaitable[None]],
        *,
        resyncs_after_errors: bool = False,
    ) -> None:
        self._name = name
        self._follow = follow
        self._on_sync = on_sync
        self._on_changes = on_changes
        self._resyncs_after_errors = resyncs_after_errors
        self._backoff = Backoff(timedelta(milliseconds=200), timedelta(seconds=5))
        self._failure = LogOnce(log)

    async def run(self, position: int | None = None) -> None:
        """Run until cancelled, from `position` if the state up to it is known. Errors are retried and logged once."""
        while True:
            try:
                if position is None:
                    position = await self._on_sync()
                async for changes in self._follow(position):
                    self._backoff.reset()
                    self._failure.reset()
                    await self._on_changes(changes)
                    position = changes[-1].revision if changes else position
            except ExpiredError:
                log.warning("the change log was compacted: everything is read again", follower=self._name, revision=position)
                position = None
            except MusterError as error:
                pause = self._backoff.next().total_seconds()
                event = "the change log cannot be followed now"
                self._failure.warning(event, error.message, follower=self._name, retry_in=round(pause, 3))
                position = None if self._resyncs_after_errors else position
                await asyncio.sleep(pause)
