"""A stream that waits for one object is given what changes, so that it need not ask the store what it was told already."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from hub.api.meta.change import Change


class Followed:
    """Changes of one object for one reader, who needs only the newest."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._newest: Change | None = None
        self._in_doubt = False
        self._known = 0

    def changed(self, change: Change) -> None:
        """What the reader knows already is no news to him."""
        if change.revision > self._known:
            self._newest = change
            self._woken.set()

    def read(self, revision: int) -> None:
        """The reader has read the object at this revision: changes up to it may still be on their way here."""
        self._known = revision
        if self._newest is not None and self._newest.revision <= revision:
            self._newest = None
            if not self._in_doubt:
                self._woken.clear()

    def wake(self) -> None:
        """Something else has happened, or changes may have been missed: the reader is to ask the store."""
        self._in_doubt = True
        self._woken.set()

    def take(self) -> Change | None:
        """The newest change since the last question; None: only the store knows more."""
        newest, in_doubt = self._newest, self._in_doubt
        self._newest, self._in_doubt = None, False
        self._woken.clear()
        return None if in_doubt else newest

    async def wait(self, at_most: timedelta) -> None:
        """Returns when there is something to take, or when the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most.total_seconds()):
                await self._woken.wait()
