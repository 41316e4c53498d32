"""Agents with several hubs, which are killed, stopped, silenced, slow, full, forgetful, or given up by operators.

In `make soak` also a crowd. That no two hubs accept a write in the same epoch is shown in tests/unit/spoke/test_hub_history.py.
"""

import asyncio
import json
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.conftest import told_when_failed
from tests.e2e.crowd import crowd_of
from tests.e2e.hubs import ELSEWHERE, HERE, NAMESPACE, OWNER_SECRET, SECRETS, Hubs, hub_id_of, hubs_in, now, reason_of
from tests.e2e.processes import until
from tests.trials import soak_only

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
async def standing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hubs]:
    """Two hubs that nobody has used; who wants a third starts it."""
    async with hubs_in(tmp_path_factory.mktemp("hubs")) as hubs:
        await hubs.start(2)
        yield hubs


@pytest.fixture
async def hubs(standing: Hubs, request: pytest.FixtureRequest) -> AsyncIterator[Hubs]:
    """All hubs run and are reached, and no agent does; each test has clusters of its own names."""
    yield standing
    told_when_failed(request, [*standing.programs, *(hub.serving for hub in standing.all)])
    await standing.heal()
    assert "PRIVATE KEY" not in standing.logs


async def test_with_all_bootstrap_credentials_revoked_a_killed_owner_is_left_for_the_next_hub(hubs: Hubs) -> None:
    await hubs.spoke("night")
    await hubs.reserve("night")
    for hub in hubs.all[:2]:
        listed = json.loads(await hub.hubctl("get", "bootstrap-credentials", "-o", "json"))["items"]
        (own,) = [each["metadata"]["name"] for each in listed if '"night"' in json.dumps(each["spec"])]
        await hub.hubctl("revoke", "bootstrap-credential", own)
    before = hubs[0].row("night").epoch
    began = now()
    await hubs[0].kill()
    await hubs.beats("night", hubs[1], began)
    assert hubs[1].row("night").epoch > before
    assert hub_id_of(await hubs.secret("night")) == hubs[1].id
    await hubs[0].start()
    await hubs.reserve("night", owner=1)
    assert hubs[0].row("night").epoch == hubs[1].row("night").epoch
    assert "taints" not in (await hubs[0].cluster("night"))["spec"]


async def test_of_three_hubs_the_third_takes_over_and_when_all_are_away_one_is_waited_for(hubs: Hubs) -> None:
    await hubs.start(1)
    agent = await hubs.spoke("third", count=3)
    await hubs.reserve("third", count=3)
    await hubs[1].kill()
    began = now()
    await hubs[0].kill()
    await hubs.beats("third", hubs[2], began)

    troubles = agent.output.count("agent.trouble")
    await hubs[2].kill()
    await agent.says("agent.trouble", troubles + 3)
    assert agent.running
    began = now()
    await hubs[1].start()
    await hubs.beats("third", hubs[1], began)
    assert agent.running


async def test_an_agent_leaves_an_owner_that_moves_it_denies_it_or_is_stopped(hubs: Hubs) -> None:
    agent = await hubs.spoke("moved")
    await hubs.reserve("moved")
    assert "hub-1" in await hubs[0].hubctl("move", "cluster", "moved", "--to", "nowhere", code=1)
    assert reason_of(await hubs[0].cluster("moved")) == HERE
    began = now()
    await hubs[0].hubctl("move", "cluster", "moved", "--to", "hub-1")
    await hubs.beats("moved", hubs[1], began)
    await hubs[0].shows("moved", "ManagedClusterMoved")
    assert agent.output.count("session.opened") == 2
    await hubs.reserve("moved", owner=1)

    began = now()
    await hubs[1].hubctl("deny", "moved")
    await hubs.beats("moved", hubs[0], began)
    await hubs[1].hubctl("accept", "moved")
    await hubs[1].shows("moved", *ELSEWHERE)
    await hubs.reserve("moved")

    began = now()
    assert await hubs[0].serving.stop(signal.SIGTERM) == 0
    await hubs.beats("moved", hubs[1], began)


async def test_secrets_that_are_deleted_or_restored_from_last_week_are_healed(hubs: Hubs) -> None:
    await hubs.bootstraps("restored", "--uses=2")  # an agent that lost all its secrets is another one
    agent = await hubs.spoke("restored")
    await hubs.reserve("restored")
    async with hubs.kubernetes("restored") as client:
        old = await client.list(SECRETS.path(namespace=NAMESPACE))
        began = now()
        await hubs[0].kill()
        await hubs.beats("restored", hubs[1], began)
        await agent.kill()
        await hubs[0].start()
        newest = hubs[1].row("restored").epoch
        for secret in old:
            path = SECRETS.path(secret["metadata"]["name"], namespace=NAMESPACE)
            await client.delete(path)
            await client.create(
                SECRETS.path(namespace=NAMESPACE),
                {key: secret[key] for key in ("apiVersion", "kind", "data")}
                | {"metadata": {"name": secret["metadata"]["name"], "namespace": NAMESPACE}},
            )
        began = now()
        await agent.start()
        await hubs.beats("restored", hubs[0], began)
        await hubs.reserve("restored")
        assert hubs[0].row("restored").epoch > newest
        for name in await hubs.secret_names("restored"):
            await client.delete(SECRETS.path(name, namespace=NAMESPACE))
    await agent.kill()
    began = now()
    await agent.start()
    await hubs.beats("restored", hubs[0], began)
    assert OWNER_SECRET in await hubs.secret_names("restored")
    await hubs.reserve("restored")


async def test_a_hub_that_comes_and_goes_is_not_followed_in_circles(hubs: Hubs) -> None:
    agent = await hubs.spoke("flap")
    await hubs.reserve("flap")
    for _ in range(4):
        await hubs[0].path.refuse()
        await asyncio.sleep(0.7)  # the fault itself: away and back within a second
        await hubs[0].path.take()
        await asyncio.sleep(0.7)
    await hubs.beats("flap", hubs[1], now())
    await hubs.reserve("flap", owner=1)
    assert agent.output.count("session.opened") <= 3
    assert len(await hubs[1].requests()) == len({each["spec"]["request"] for each in await hubs[1].requests()})


async def test_a_full_hub_keeps_nobody_from_the_next_one_and_a_slow_one_keeps_its_agents(hubs: Hubs) -> None:
    agent = await hubs.prepared("full")
    await hubs[0].path.fill()
    await agent.start()
    await hubs[1].shows("full", HERE)
    await hubs[0].path.take()
    await hubs.reserve("full", owner=1)
    hubs[1].path.delay = 0.3
    since = now()
    await asyncio.sleep(4)  # the fault itself
    assert hubs[1].row("full").beat > since
    assert agent.output.count("session.opened") == 1


async def test_a_hub_restored_from_yesterday_is_joined_anew_and_has_no_say(hubs: Hubs) -> None:
    yesterday = hubs.folder / "yesterday.db"
    await hubs.bootstraps("older")
    snapshot(hubs[0].database, yesterday)
    await hubs.spoke("older")
    await hubs.reserve("older")
    began = now()
    await hubs[0].kill()
    for file in hubs[0].data.glob("hub.db*"):
        file.unlink()
    shutil.copy(yesterday, hubs[0].database)
    await hubs[0].start()
    await hubs.beats("older", hubs[1], began)
    await hubs.reserve("older", owner=1)
    assert hubs[0].row("older").epoch == hubs[1].row("older").epoch


def snapshot(database: Path, to: Path) -> None:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


AGENTS = 100


@soak_only(AGENTS)  # in `make test`: tests/unit/spoke/test_hub_history.py
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("quiet")
async def test_a_hundred_agents_are_on_the_other_hub_with_few_connections(tmp_path: Path) -> None:
    async with hubs_in(tmp_path) as hubs:
        await hubs.start(2, "--default-lease-duration=10s", "--beat-interval=2s")
        crowd = await crowd_of(hubs[0].admin, AGENTS, hubs[1].admin)
        async with crowd.running():
            await crowd.all_heard()
            await until(lambda: sum(hub.stands_by() for hub in hubs.all) == AGENTS, what="all agents stand by")
            owner, other = sorted(hubs.all, key=lambda hub: hub.stands_by())  # on a busy machine some may prefer the second
            since, dialled = asyncio.get_running_loop().time(), len(other.path.taken)
            leaving = other.stands_by()
            await owner.kill()
            await crowd.all_heard(since)
            # some may have heard after that moment what the owner acknowledged before its end
            await until(lambda: other.stands_by() == 0, what="every agent has the other hub for its own")
            taken = len(other.path.taken) - dialled
            assert leaving <= taken <= 2 * AGENTS, f"{taken} connections for {leaving} agents"
