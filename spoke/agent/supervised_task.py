"""Tasks that run beside the agent's loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import structlog

from machinery.runtime.backoff import Backoff

log = structlog.get_logger(__name__)


@asynccontextmanager
async def beside(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `work` for the length of the block; log a defect in it and restart it, so that it does not end the agent."""

    async def guarded() -> None:
        pauses = Backoff(timedelta(seconds=1), timedelta(minutes=1))
        while True:
            try:
                await work()
            except Exception:
                log.exception("agent.part_failed", part=getattr(work, "__qualname__", "?"))
                await asyncio.sleep(pauses.next().total_seconds())
            else:
                return

    task = asyncio.create_task(guarded(), name=f"agent/{getattr(work, '__qualname__', '?')}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
