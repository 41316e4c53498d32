"""A start that does not hang: each step that waits for something outside has a name and an end."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import TypeVar

from machinery.lifecycle.server import StartError

T = TypeVar("T")


async def in_time(what: str, work: Awaitable[T], limit: timedelta, *, then: str = "") -> T:
    """What `work` returns. Raises StartError, which names `what` and says what to do (`then`), once `limit` is over."""
    try:
        async with asyncio.timeout(limit.total_seconds()) as bound:
            return await work
    except TimeoutError:
        if not bound.expired():
            raise
        advice = f": {then}" if then else ""
        raise StartError(f"{what} did not finish within {limit.total_seconds():g} s{advice}") from None
