"""The bootstrap kubeconfig on disk, which others may replace at any time: read, and noticed when it changes."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from machinery.errors import InvalidError
from machinery.kubeconfig import parse_kubeconfig
from spoke.domain.reach import Reach
from spoke.kubeconfigs import HOWEVER, Connection, connection_of

T = TypeVar("T")


class BootstrapChangedError(Exception):
    """Another bootstrap kubeconfig lies on the disk."""


class BootstrapFile:
    """The bootstrap kubeconfig on disk, which others may replace at any time."""

    def __init__(self, path: Path, reach: Reach = HOWEVER) -> None:
        self.path = path
        self._reach = reach

    def signature(self) -> tuple[int, ...]:
        """Changes when the file is written or replaced; empty while there is none."""
        with suppress(OSError):
            status = self.path.stat()
            return status.st_ino, status.st_size, status.st_mtime_ns
        return ()

    def read(self) -> Connection:
        """Raises InvalidError, with what is missing and what to do."""
        try:
            text = self.path.read_bytes()
        except OSError as error:
            raise InvalidError(
                f"bootstrap kubeconfig {self.path} cannot be read: {error.strerror or error}; "
                "make one with hubctl create bootstrap-kubeconfig"
            ) from None
        return connection_of(parse_kubeconfig(text, source=str(self.path), folder=self.path.parent), self._reach)


class BootstrapWatch:
    """Whether the file is another one than when it was looked at last."""

    def __init__(self, file: BootstrapFile) -> None:
        self.file = file
        self._signature: tuple[int, ...] = ()
        self._changed = asyncio.Event()

    @property
    def changed(self) -> bool:
        return self._changed.is_set()

    def settle(self) -> None:
        """The file as it is now is known."""
        self._changed.clear()
        self._signature = self.file.signature()

    def look(self) -> None:
        """To be called now and then."""
        if self.file.signature() != self._signature:
            self._changed.set()

    async def rest(self, delay: timedelta) -> None:
        """Waits, unless the file is replaced meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(delay.total_seconds()):
                await self._changed.wait()

    async def unless_changed(self, work: Coroutine[Any, Any, T], *, leave: Callable[[], bool] = lambda: True) -> T:
        """Does `work`. Raises BootstrapChangedError as soon as the file is another and `leave` says that this matters."""
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
