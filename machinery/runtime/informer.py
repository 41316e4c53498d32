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
    """An entry of the change log that an informer follows."""

    @property
    def revision(self) -> int: ...


C = TypeVar("C", bound=LogEntry)


class Informer(Generic[C]):
    """Calls `on_sync` at the start and after a compaction of the change log, then `on_changes` with all later changes in order.

    `on_sync` reads the state and returns its revision. `follow` yields the changes after a revision. `name`: for log messages.
    After an error the informer continues at its position; with `resyncs_after_errors`, it calls `on_sync` again.
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
        """Run until cancelled. Retry after errors, and log them once.

        `position`: the caller already knows the state at this revision, so `on_sync` is not called at the start.
        """
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
