"""A hundred agents whose hub is killed: all are on the other one in time, and none dials more often than it must.

That they do not come at one moment is shown in virtual time (tests/unit/spoke/test_failover_spread.py): here they share an
event loop with the path, which tells when a busy machine got round to a connection, not when an agent chose to come.
"""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.e2e.crowd import crowd_of
from tests.e2e.hubs import hubs_in
from tests.e2e.processes import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

AGENTS = 100
WITHIN = 60.0
"""Seconds for all of them. A single agent is promised to be there within three; these share a processor or two with the hub."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What a hundred agents say would take as much of the processor as what they do."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()


async def test_a_hundred_agents_are_on_the_other_hub_in_time_with_few_connections(tmp_path: Path) -> None:
    async with hubs_in(tmp_path) as hubs:
        await hubs.start(2, "--default-lease-duration=10s", "--beat-interval=2s")
        crowd = await crowd_of(hubs[0].admin, AGENTS, hubs[1].admin)
        async with crowd.running():
            await crowd.all_heard(within=90)

            async def in_reserve() -> bool:
                return sum(hub.stands_by() for hub in hubs.all) == AGENTS

            await until(in_reserve, what="all agents stand by", within=90)
            owner, other = sorted(hubs.all, key=lambda hub: hub.stands_by())  # on a busy machine some may prefer the second
            since, dialled = asyncio.get_running_loop().time(), len(other.path.taken)
            leaving = other.stands_by()
            await owner.kill()
            await crowd.all_heard(since, within=WITHIN)

            async def nobody_is_left() -> bool:
                return other.stands_by() == 0

            # some may have heard after that moment what the owner acknowledged before its end
            await until(nobody_is_left, what="every agent has the other hub for its own", within=WITHIN)
            taken = len(other.path.taken) - dialled
            assert leaving <= taken <= 2 * AGENTS, f"{taken} connections for {leaving} agents"
