"""Work at a bounded rate, and common instants for periodic work.

Clients that are disconnected all at once reconnect elsewhere all at once. Periodic checks at different instants wake an idle
machine once each, and most of their cost is the wake-up. On a server's loop the common instants are just after even seconds of
the wall clock, at which agents beat.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import TypeVar

from machinery.runtime.event_loop import PausingLoop

T = TypeVar("T")

LEAST_RATE = 200
LEAST_REST = 0.25
SLACK = 0.005
"""Backlog in seconds that `paced` may work off without sleeping: a wake-up per item would cost more than the item."""


def drain_rate(count: int, grace: timedelta) -> float:
    """Items per second that finish `count` items within `grace`; at least the rate at which Kubernetes ends watches."""
    seconds = grace.total_seconds()
    return max(LEAST_RATE, count / seconds) if seconds > 0 else float("inf")


async def paced(things: Sequence[T], rate: float) -> AsyncIterator[T]:
    """Yield `things` in order at `rate` per second, never faster, also after a pause of the consumer."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    for thing in things:
        now = loop.time()
        due = max(due, now - SLACK)
        if due - now > SLACK:
            await asyncio.sleep(due - now)
        yield thing
        due += 1 / rate


def until_tick(period: timedelta) -> float:
    """Seconds until the next tick of this period, common to all users of this event loop; at least a quarter of the period."""
    seconds = period.total_seconds()
    if not seconds:
        return 0.0
    loop = asyncio.get_running_loop()
    rest = seconds - (loop.tick_time() if isinstance(loop, PausingLoop) else loop.time()) % seconds
    return rest if rest >= seconds * LEAST_REST else rest + seconds
