"""Agents with several hubs, which are killed, frozen behind a balancer, or given up by operators."""

import json
import socket
from collections.abc import AsyncIterator

import pytest

from tests.e2e.conftest import told_when_failed
from tests.e2e.hubs import HERE, Hubs, hub_id_of, hubs_in, now
from tests.e2e.processes import until

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
