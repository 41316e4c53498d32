"""An agent that runs for the length of a block."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from spoke.agent import SpokeAgent


@asynccontextmanager
async def running(agent: SpokeAgent) -> AsyncIterator[SpokeAgent]:
    """Its error, if it ends by itself, is raised."""
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        if task.done():
            task.result()
        task.cancel()
        await asyncio.wait([task])
