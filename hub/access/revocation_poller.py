"""Looking for what was revoked: as soon as there is word of it, and now and then whether there is or not.

A revocation has the time at which its transaction began, and may become visible much later: PostgreSQL holds a commit back
until the synchronous standby has confirmed it, for as long as that is away, and then rings. So most looks read what is new,
with an overlap, and some read far back: soon after every word, at the first look, and once a minute.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol

from hub.ports import Store
from machinery.runtime.rate_limit import until_tick

POLL = timedelta(milliseconds=500)
RARELY = timedelta(seconds=5)
"""Between looks where word comes by itself."""
OVERLAP = timedelta(seconds=15)
"""Transactions that began before the last look may commit after it, once they were let write; this much is read again."""
FAR = timedelta(days=7)
"""So much is read again where a commit may have waited for its standby."""
SOON = timedelta(milliseconds=500)
"""A look far back follows every word by so long: many words have one."""
AFRESH = timedelta(minutes=1)
"""Between looks far back without a word."""


class PollFunction(Protocol):
    """One look; `far`: far back. Returns whether it could."""

    async def __call__(self, *, far: bool) -> bool: ...


class RevocationPoller:
    """When to look. `poll`: between looks where no word comes by itself."""

    def __init__(self, store: Store, poll: timedelta = POLL) -> None:
        self._store = store
        self._poll = poll
        self._is_told: Callable[[], bool] = lambda: False

    @property
    def is_told(self) -> bool:
        """Whether word of every revocation comes by itself now, so that looks are rare."""
        return self._is_told()

    async def run(self, look: PollFunction) -> None:
        """Looks for ever: now, soon after every revocation on any replica, and now and then."""
        loop, word = asyncio.get_running_loop(), asyncio.Event()
        far_due = loop.time()
        with self._store.told_of_revocations(word.set) as self._is_told:
            while True:
                word.clear()
                far = loop.time() >= far_due
                seen = await look(far=far)
                if far and seen:
                    far_due = loop.time() + AFRESH.total_seconds()
                pause = max(self._poll, RARELY) if self.is_told and seen else self._poll
                wait = until_tick(pause)
                await _heard(word, min(wait, far_due - loop.time()) if seen else wait)
                if word.is_set():
                    far_due = min(far_due, loop.time() + SOON.total_seconds())


async def _heard(word: asyncio.Event, seconds: float) -> None:
    """Returns at the word, or when the time is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0)):
            await word.wait()


class ReadWindow:
    """From when on to read, by the database's time."""

    def __init__(self) -> None:
        self._since: datetime | None = None

    def begin(self, *, far: bool) -> datetime | None:
        """For the next look; None: far back, as the first one does."""
        return None if far else self._since

    def end(self, now: datetime) -> None:
        """The look has succeeded, in a transaction of that time."""
        self._since = now - OVERLAP
