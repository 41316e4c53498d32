"""Whether the list of hubs is another one than when it was looked at last."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import structlog

from machinery.errors import MusterError
from spoke.bootstraps.listing import BootstrapListing, Bootstraps
from spoke.bootstraps.sources import BootstrapSource

T = TypeVar("T")

AGAIN = timedelta(seconds=30)
"""After a watch of a secret that failed for good."""

log = structlog.get_logger(__name__)


class BootstrapChangedError(Exception):
    """Another bootstrap kubeconfig is there."""


class BootstrapWatch:
    """What the list was when it was settled, and a flag that it is another now."""

    def __init__(self, bootstraps: Bootstraps) -> None:
        self._bootstraps = bootstraps
        self._signature: object = None
        self._changed = asyncio.Event()
        self.listing = BootstrapListing()
        """As of the last `settle`."""

    @property
    def changed(self) -> bool:
        return self._changed.is_set()

    @property
    def replaced(self) -> bool:
        """The list itself is another, and not only something about it."""
        return self._bootstraps.signature() != self._signature

    def stir(self) -> None:
        """Something else is to be looked at: whoever waits for a change looks up."""
        self._changed.set()

    def acknowledge(self) -> None:
        """Whatever stirred is seen to; the list is the one that it was."""
        self._changed.clear()

    def settle(self) -> BootstrapListing:
        """The list as it is now is known."""
        self._changed.clear()
        self._signature = self._bootstraps.signature()
        self.listing = self._bootstraps.look()
        return self.listing

    def look(self) -> None:
        """To be called now and then."""
        if self._bootstraps.signature() != self._signature:
            self._changed.set()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Every source is known when this is entered, and those that tell of their changes are followed while it lasts."""
        await self._bootstraps.load()
        following = [
            asyncio.create_task(self._follow(source, changes), name=f"bootstrap {source.source}")
            for source in self._bootstraps.sources
            if (changes := source.changes()) is not None
        ]
        try:
            yield
        finally:
            for task in following:
                await _ended(task)

    async def _follow(self, source: BootstrapSource, changes: AsyncIterator[None] | None) -> None:
        while changes is not None:
            try:
                async for _ in changes:
                    self.look()
            except MusterError as error:
                log.warning("bootstrap.not_watched", source=source.source, error=error.message)
            except Exception:
                # a defect of ours in a watch must not end the agent; the source is followed anew
                log.exception("bootstrap.not_watched", source=source.source)
            await asyncio.sleep(AGAIN.total_seconds())
            changes = source.changes()

    async def rest(self, delay: timedelta) -> None:
        """Waits, unless the list changes meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(delay.total_seconds()):
                await self._changed.wait()

    async def unless_changed(self, work: Coroutine[Any, Any, T], *, leave: Callable[[], bool] = lambda: True) -> T:
        """Does `work`. Raises BootstrapChangedError as soon as the list is another and `leave` says that this matters."""
        doing = asyncio.create_task(work, name="until the bootstrap kubeconfig changes")
        try:
            while True:
                change = asyncio.create_task(self._changed.wait(), name="bootstrap change")
                try:
                    await asyncio.wait((doing, change), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await _ended(change)
                if doing.done():
                    return doing.result()
                if leave():
                    raise BootstrapChangedError
        finally:
            await _ended(doing)


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancels it where it still runs, and waits. How it failed meanwhile is no news any more."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
