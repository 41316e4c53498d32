"""An agent that is told to end, ends: whatever it is in the middle of."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from spoke.ports import HubLostError, HubSession
from tests.fakes.hub import MemoryHubClient, MemorySession
from tests.fakes.stage import Stage, until
from tests.unit.spoke.test_agent import is_available


async def test_an_agent_ends_in_the_middle_of_a_change_over(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old session is lost in the moment in which the agent is cancelled, and nobody is left to tell how the change went."""
    opening = asyncio.Event()

    @asynccontextmanager
    async def never(_client: MemoryHubClient, _uid: str) -> AsyncIterator[HubSession]:
        opening.set()
        await asyncio.Event().wait()
        yield stage.hub.session

    async def torn(_session: MemorySession, *, available: bool | None) -> None:
        del available
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise HubLostError("the stream is gone") from None

    agent = asyncio.create_task(stage.agent().run())
    await until(lambda: is_available(stage))
    monkeypatch.setattr(MemoryHubClient, "session", never)
    monkeypatch.setattr(MemorySession, "beat", torn)
    stage.hub.session.drain()
    await asyncio.wait_for(opening.wait(), 5)
    agent.cancel()
    done, _ = await asyncio.wait([agent], timeout=5)
    assert done, "the agent hangs"
