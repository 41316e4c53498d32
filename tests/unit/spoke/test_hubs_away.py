"""Every hub away for an hour, in virtual time: no prober restarts the agent, it asks in moderation, and is back by itself."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.fakes.hub import MemoryHub
from tests.fakes.several_hubs import SeveralHubs
from tests.fakes.virtual_time import LoopClock, in_virtual_time

HOUR, PROBE = 3600, 10.0
MODERATE = 5 * 2 * 60
"""Dials in an hour: every hub five times a minute, sessions and standing by together."""


def fall_silent(world: SeveralHubs, hub: MemoryHub) -> None:
    del world
    hub.silent = True


@pytest.mark.parametrize("lose", [SeveralHubs.go, fall_silent])
def test_an_hour_without_any_hub_restarts_no_agent(tmp_path: Path, lose: Callable[[SeveralHubs, MemoryHub], None]) -> None:
    async def told() -> None:
        world = SeveralHubs(LoopClock(asyncio.get_running_loop()), tmp_path)
        agent = world.agent(Random(1))
        life = asyncio.create_task(agent.run())
        await _until(lambda: world.owner is not None, within=60)
        for hub in world.hubs:
            lose(world, hub)
        dialled = sum(hub.dialled for hub in world.hubs)
        for _ in range(int(HOUR / PROBE)):
            await asyncio.sleep(PROBE)
            assert agent.progress.live().ok, agent.progress.live().text
            assert not life.done()
        assert not agent.progress.ready().ok
        assert sum(hub.dialled for hub in world.hubs) - dialled <= MODERATE
        for hub in world.hubs:
            world.come(hub)
        await _until(lambda: agent.progress.ready().ok, within=120)
        life.cancel()
        await asyncio.wait([life])

    in_virtual_time(told())


async def _until(holds: Callable[[], object], within: float) -> None:
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 - told by nobody
            await asyncio.sleep(0.1)
