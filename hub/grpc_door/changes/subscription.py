"""Delivers the newest change of one object to a stream, so that it need not read the store."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from hub.api.meta.change import Change


class Followed:
    """Changes of one object for one reader; only the newest is kept."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._newest: Change | None = None
        self._in_doubt = False
        self._known = 0

    def changed(self, change: Change) -> None:
        """Delivers a change, unless the reader has read a revision at least as new."""
        if change.revision > self._known:
            self._newest = change
            self._woken.set()

    def read(self, revision: int) -> None:
        """Records that the reader has read this revision; changes up to it that arrive later are ignored."""
        self._known = revision
        if self._newest is not None and self._newest.revision <= revision:
            self._newest = None
            if not self._in_doubt:
                self._woken.clear()

    def wake(self) -> None:
        """Wakes the reader to read the store: changes may have been missed, or another condition has changed."""
        self._in_doubt = True
        self._woken.set()

    def take(self) -> Change | None:
        """Returns the newest change since the last call; None: read the store."""
        newest, in_doubt = self._newest, self._in_doubt
        self._newest, self._in_doubt = None, False
        self._woken.clear()
        return None if in_doubt else newest

    async def wait(self, at_most: timedelta) -> None:
        """Returns when there is something to take, or after this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most.total_seconds()):
                await self._woken.wait()
