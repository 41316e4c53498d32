"""When things are done: many at a bounded rate, evenly, and what is done now and then by all at the same moment.

What is ended at once comes back at once, somewhere else. What is looked at now and then by one part of a process at a time
wakes an idle machine for each: most of what such a look costs is the waking. On a server's loop those moments are just behind
even seconds of the wall clock, at which its agents beat.
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
"""Seconds that may be made up for at once: waking up for each of thousands would cost more than they do."""


def drain_rate(count: int, grace: timedelta) -> float:
    """How many per second are ended: fast enough for `grace`, and never slower than Kubernetes ends watches."""
    seconds = grace.total_seconds()
    return max(LEAST_RATE, count / seconds) if seconds > 0 else float("inf")


async def paced(things: Sequence[T], rate: float) -> AsyncIterator[T]:
    """Yields them in order, `rate` per second and never more, also after a pause of who takes them."""
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
    """Seconds until the next tick of this period, which all in this event loop have in common; at least a quarter of it."""
    seconds = period.total_seconds()
    if not seconds:
        return 0.0
    loop = asyncio.get_running_loop()
    rest = seconds - (loop.tick_time() if isinstance(loop, PausingLoop) else loop.time()) % seconds
    return rest if rest >= seconds * LEAST_REST else rest + seconds
