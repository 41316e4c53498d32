"""Agents with several hubs, which are killed, stopped, silenced, slow, full, forgetful, or given up by operators."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.conftest import told_when_failed
from tests.e2e.crowd import crowd_of
from tests.e2e.hubs import ELSEWHERE, HERE, Hubs, hub_id_of, hubs_in, now, reason_of
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
    await standing.raise_epoch_above()
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


async def test_frozen_replica_behind_a_balancer_is_left_by_a_new_connection(hubs: Hubs) -> None:
    """One address, so that only the balancer can choose another replica, and only for a new connection.

    The agent is silent for 5 s until its beat counts as lost, 5 s for each such connection, and a pause: below 20 s with one.
    """
    agent, path = await hubs.spoke("balanced", "--hub-silence=2s", count=1), hubs[0].path
    await hubs[0].shows("balanced", HERE)
    opened, real = agent.output.count("session.opened"), hubs[0].grpc_port
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        silent = frozen.getsockname()[1]
        path.targets = [silent]
        path.silence()
        path.reroute()
        await until(lambda: path.taken[silent], what="the balancer gives the agent the frozen replica again")
        path.targets = [real]
        await agent.says("session.opened", opened + 1)
        assert (path.taken[silent], agent.output.count("did not welcome the session in time")) == (1, 1)
    await hubs.beats("balanced", hubs[0], now())


@soak_only(1)  # in `make test`: test_hub_that_refuses_or_is_silent_is_left_in_time in tests/unit/spoke/test_failover.py
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


AGENTS = 100


@soak_only(AGENTS)  # in `make test`: tests/unit/spoke/test_crashes.py
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
            since, dialled = asyncio.get_running_loop().time(), other.path.taken.total()
            leaving = other.stands_by()
            await owner.kill()
            await crowd.all_heard(since)
            # some may have heard after that moment what the owner acknowledged before its end
            await until(lambda: other.stands_by() == 0, what="every agent has the other hub for its own")
            taken = other.path.taken.total() - dialled
            assert leaving <= taken <= 2 * AGENTS, f"{taken} connections for {leaving} agents"
