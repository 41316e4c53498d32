"""Agents with several hubs, as processes; hubs are killed, stopped, silenced, slow, full, forgetful, given up by operators."""

import asyncio
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from machinery.clock import SystemClock
from machinery.kubeconfig import read_kubeconfig
from machinery.pki import parse_certificate
from tests.e2e.conftest import told_when_failed
from tests.e2e.hubs import ELSEWHERE, HERE, NAMESPACE, OWNER_SECRET, SECRETS, Hubs, hub_id_of, hubs_in, now, reason_of
from tests.e2e.processes import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

CRASH = 3.0
"""Seconds in which an agent is promised to be on another hub when its own was killed."""
SILENT = 20.0
"""The same, when the link to its own fell silent."""


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


async def test_with_all_bootstrap_credentials_ended_a_killed_owner_costs_three_seconds(hubs: Hubs) -> None:
    files = await hubs.bootstraps("night", "--expires=10s")
    await hubs.spoke("night")
    await hubs.reserve("night")
    ends = max(parse_certificate(read_kubeconfig(file).require_credential().chain).not_after for file in files)

    async def all_have_ended() -> bool:
        return SystemClock().now() > ends

    await until(all_have_ended, what="the last bootstrap credential has ended")
    before = hubs[0].row("night").epoch
    began = now()
    await hubs[0].kill()
    await hubs.failed_over("night", hubs[1], began, CRASH)
    assert hubs[1].row("night").epoch > before
    assert hub_id_of(await hubs.secret("night")) == hubs[1].id
    await hubs[0].start()
    await hubs.reserve("night", owner=1)
    assert hubs[0].row("night").epoch == hubs[1].row("night").epoch
    assert "taints" not in (await hubs[0].cluster("night"))["spec"]


async def test_an_owner_that_is_stopped_is_left_for_the_next_hub(hubs: Hubs) -> None:
    await hubs.spoke("tidy")
    await hubs.reserve("tidy")
    began = now()
    assert await hubs[0].serving.stop(signal.SIGTERM) == 0
    await hubs.failed_over("tidy", hubs[1], began, CRASH)


async def test_a_link_that_falls_silent_is_noticed_and_the_old_session_writes_no_more(hubs: Hubs) -> None:
    await hubs.spoke("mute")
    await hubs.reserve("mute")
    began = now()
    hubs[0].path.silence()
    await hubs.failed_over("mute", hubs[1], began, SILENT)
    hubs[0].path.resume()  # what was on its way arrives, and the hub does not know better yet
    await hubs.reserve("mute", owner=1)
    last, since = hubs[0].row("mute").beat, now()
    await hubs.beats("mute", hubs[1], since + 1_000_000, within=15)
    assert hubs[0].row("mute").beat == last
    assert reason_of(await hubs[0].cluster("mute")) in ELSEWHERE


async def test_of_three_hubs_the_third_takes_over_when_two_are_killed(hubs: Hubs) -> None:
    await hubs.start(1)
    await hubs.spoke("third", count=3)
    await hubs.reserve("third", count=3)
    await hubs[1].kill()
    began = now()
    await hubs[0].kill()
    await hubs.failed_over("third", hubs[2], began, CRASH)


async def test_a_planned_move_goes_where_it_is_told_and_says_so_where_it_left(hubs: Hubs) -> None:
    agent = await hubs.spoke("moved")
    await hubs.reserve("moved")
    refused = await hubs[0].hubctl("move", "cluster", "moved", "--to", "nowhere", code=1)
    assert "hub-1" in refused
    assert reason_of(await hubs[0].cluster("moved")) == HERE
    began = now()
    await hubs[0].hubctl("move", "cluster", "moved", "--to", "hub-1")
    await hubs.beats("moved", hubs[1], began, within=15)
    await hubs[0].shows("moved", "ManagedClusterMoved")
    assert agent.output.count("session.opened") == 2


async def test_a_cluster_that_is_denied_on_one_hub_goes_to_the_other(hubs: Hubs) -> None:
    await hubs.spoke("denied")
    await hubs.reserve("denied")
    began = now()
    await hubs[0].hubctl("deny", "denied")
    await hubs.beats("denied", hubs[1], began, within=15)
    await hubs[0].hubctl("accept", "denied")
    await hubs[0].shows("denied", *ELSEWHERE, within=60)


async def test_secrets_that_are_deleted_or_restored_from_last_week_are_healed(hubs: Hubs) -> None:
    await hubs.bootstraps("restored", "--uses=2")  # an agent that lost all its secrets is another one
    agent = await hubs.spoke("restored")
    await hubs.reserve("restored")
    async with hubs.kubernetes("restored") as client:
        old = await client.list(SECRETS.path(namespace=NAMESPACE))
        began = now()
        await hubs[0].kill()
        await hubs.beats("restored", hubs[1], began, within=15)
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
        await hubs.beats("restored", hubs[0], began, within=20)
        await hubs.reserve("restored")
        assert hubs[0].row("restored").epoch > newest
        for name in await hubs.secret_names("restored"):
            await client.delete(SECRETS.path(name, namespace=NAMESPACE))
    await agent.kill()
    began = now()
    await agent.start()
    await hubs.beats("restored", hubs[0], began, within=30)
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
    await hubs.beats("flap", hubs[1], now(), within=15)
    await hubs.reserve("flap", owner=1)
    assert agent.output.count("session.opened") <= 3
    assert len(await hubs[1].requests()) == len({each["spec"]["request"] for each in await hubs[1].requests()})


async def test_a_full_hub_keeps_nobody_from_the_next_one_and_a_slow_one_keeps_its_agents(hubs: Hubs) -> None:
    agent = await hubs.prepared("full")
    await hubs[0].path.fill()
    await agent.start()
    await hubs[1].shows("full", HERE, within=60)
    await hubs[0].path.take()
    await hubs.reserve("full", owner=1, within=90)
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
    await hubs.beats("older", hubs[1], began, within=15)
    await hubs.reserve("older", owner=1, within=90)
    assert hubs[0].row("older").epoch == hubs[1].row("older").epoch


def snapshot(database: Path, to: Path) -> None:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


async def test_hubs_that_are_all_away_are_waited_for_by_the_same_process(hubs: Hubs) -> None:
    agent = await hubs.spoke("alone")
    await hubs.reserve("alone")
    await asyncio.gather(*(hub.kill() for hub in hubs.all[:2]))

    async def gave_up() -> bool:
        return agent.output.count("agent.trouble") >= 3

    await until(gave_up, what="the agent has tried both more than once", within=60)
    assert agent.running
    began = now()
    await hubs[1].start()
    await hubs.beats("alone", hubs[1], began, within=60)
    assert agent.running
