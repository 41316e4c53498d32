"""Looking for what was revoked: as soon as there is word of it, and now and then whether there is or not."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

from hub.ports import Store
from machinery.pacing import until_tick

POLL = timedelta(milliseconds=500)
OVERLAP = timedelta(seconds=15)
"""Transactions that began before the last look may commit after it, once they were let write; this much is read again."""


async def keep_looking(store: Store, look: Callable[[], Awaitable[None]], poll: timedelta) -> None:
    """Calls `look` for ever: now, soon after every revocation on any replica, and `poll` after the look before."""
    word = asyncio.Event()
    with store.told_of_revocations(word.set):
        while True:
            word.clear()
            await look()
            with suppress(TimeoutError):
                async with asyncio.timeout(until_tick(poll)):
                    await word.wait()
