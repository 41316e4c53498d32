"""Detects changes of the hub list."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import structlog

from machinery.errors import MusterError
from machinery.runtime.event_loop import wait_at_most
from machinery.runtime.tasks import cancel_and_wait
from spoke.bootstraps.listing import BootstrapListing, Bootstraps, BootstrapSource

T = TypeVar("T")

RETRY = timedelta(seconds=30)
"""Pause after a failed watch of a secret."""

log = structlog.get_logger(__name__)


class BootstrapWatch:
    """Keeps the hub list of the last `read`, and a flag that is set when the list has changed since then."""

    def __init__(self, bootstraps: Bootstraps) -> None:
        self._bootstraps = bootstraps
        self._signature: object = None
        self._changed = asyncio.Event()
        self.listing = BootstrapListing()

    @property
    def changed(self) -> bool:
        return self._changed.is_set()

    @property
    def replaced(self) -> bool:
        return self._bootstraps.signature() != self._signature

    def wake_up(self) -> None:
        """Wake up the waiting loop of the agent although the hub list has not changed."""
        self._changed.set()

    def acknowledge(self) -> None:
        """Clear the flag for changes without reading the hub list."""
        self._changed.clear()

    def read(self) -> BootstrapListing:
        """Read the present hub list and clear the flag for changes."""
        self._changed.clear()
        self._signature = self._bootstraps.signature()
        self.listing = self._bootstraps.read()
        return self.listing

    def check(self) -> None:
        """Set the flag for changes if a source has changed since the last read. Called periodically."""
        if self._bootstraps.signature() != self._signature:
            self._changed.set()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Load every source. During the block, follow the sources that report changes."""
        await self._bootstraps.load()
        following = [
            asyncio.create_task(self._follow(source, changes), name=f"bootstrap {source.source}")
            for source in self._bootstraps.sources
            if (changes := source.changes()) is not None
        ]
        try:
            yield
        finally:
            await cancel_and_wait(*following)

    async def _follow(self, source: BootstrapSource, changes: AsyncIterator[None] | None) -> None:
        while changes is not None:
            try:
                async for _ in changes:
                    self.check()
            except MusterError as error:
                log.warning("bootstrap.not_watched", source=source.source, error=error.message)
            except Exception:
                # A defect of the agent in a watch must not end the agent; the watch starts again.
                log.exception("bootstrap.not_watched", source=source.source)
            await asyncio.sleep(RETRY.total_seconds())
            changes = source.changes()

    async def rest(self, delay: timedelta) -> None:
        """Wait for `delay`, or until the flag for changes is set: by a change of the hub list, or by `wake_up`."""
        await wait_at_most(self._changed, delay.total_seconds())

    async def unless_changed(self, work: Coroutine[Any, Any, T], *, leave: Callable[[], bool] = lambda: True) -> T | None:
        """Return the result of `work`.

        If the flag for changes is set before `work` ends, and `leave()` returns True, cancel `work` and return None.
        """
        doing = asyncio.create_task(work, name="until the bootstrap kubeconfig changes")
        try:
            while True:
                change = asyncio.create_task(self._changed.wait(), name="bootstrap change")
                try:
                    await asyncio.wait((doing, change), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await cancel_and_wait(change)
                if doing.done():
                    return doing.result()
                if leave():
                    return None
        finally:
            await cancel_and_wait(doing)
