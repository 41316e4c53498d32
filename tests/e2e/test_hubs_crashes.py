"""Agents of two hubs as processes, killed with -9 exactly at a write of a secret: joining, renewing, changing their hub."""

from collections.abc import AsyncIterator
from random import Random

import pytest

from hollow.faults import HEALTHY
from tests.e2e.conftest import told_when_failed
from tests.e2e.dying import Point, assert_registered_once, dies, points
from tests.e2e.hubs import Hubs, hub_id_of, hubs_in, now
from tests.trials import SOAKING, repeated

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

JOINING = points(9)
CHANGING = points(3)


@pytest.fixture(scope="module")
async def standing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hubs]:
    async with hubs_in(tmp_path_factory.mktemp("hubs")) as hubs:
        await hubs.start(2)
        yield hubs


@pytest.fixture
async def hubs(standing: Hubs, request: pytest.FixtureRequest) -> AsyncIterator[Hubs]:
    yield standing
    told_when_failed(request, [*standing.programs[-1:], *(hub.serving for hub in standing.all)])
    await standing.heal()


def drawn(all_of_them: list[Point], seed: str) -> list[Point]:
    """All in a soak, one of them else."""
    return all_of_them if SOAKING else Random(seed).sample(all_of_them, 1)


@pytest.mark.parametrize("point", drawn(JOINING, "joining"), ids=str)
@repeated(1, 20)
async def test_an_agent_killed_at_a_write_while_it_joins_registers_once_at_each_hub(
    hubs: Hubs, point: Point, trial: int
) -> None:
    name = f"join-{point.write}-{'after' if point.done else 'before'}-{trial}"
    agent = await hubs.prepared(name)
    await dies(hubs, agent, name, point, lambda: hubs.reserve(name))
    await agent.start()
    await hubs.reserve(name)
    await assert_registered_once(hubs, name)
    assert agent.running


@pytest.mark.parametrize("point", drawn(CHANGING, "changing"), ids=str)
@repeated(1, 20)
async def test_an_agent_killed_at_a_write_while_it_changes_its_hub_arrives_with_what_it_has(
    hubs: Hubs, point: Point, trial: int
) -> None:
    name = f"change-{point.write}-{'after' if point.done else 'before'}-{trial}"
    agent = await hubs.spoke(name)
    await hubs.reserve(name)
    (await hubs.cluster(name)).faults = point.faults
    began = now()
    await hubs[0].kill()
    await dies(hubs, agent, name, point, lambda: hubs.beats(name, hubs[1], began, within=60))
    assert (await hubs.cluster(name)).faults == HEALTHY
    await agent.start()
    await hubs.beats(name, hubs[1], now(), within=60)
    assert hub_id_of(await hubs.secret(name)) == hubs[1].id
    await hubs[0].start()
    await hubs.reserve(name, owner=1, within=60)
    await assert_registered_once(hubs, name)
