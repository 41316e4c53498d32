"""The hub's limits at its HTTPS door: agents wait for agents, operators pass, and a late write is whole or not there."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest

from hub.access import Capacity
from hub.access.limits import LIFELINES
from machinery.apiserver.limiting import LEVEL_HEADER
from tests.fakes.stage import until
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_access import CLUSTERS, Visitor, holder, nobody
from tests.integration.door.test_audit import admin, cluster
from tests.integration.door.test_logins import GROUP, REQUESTS

NEVER = "resourceVersion=999999&resourceVersionMatch=NotOlderThan"


@pytest.fixture
async def narrow(tmp_path: Path) -> AsyncIterator[HubUnderTest]:
    """A hub with two seats for what agents live on."""
    hub = HubUnderTest(tmp_path, capacity=Capacity(lifelines=2))
    await hub.start()
    for name in ("a", "b", "c"):
        await hub.join(name)
    yield hub
    await hub.stop()


async def slow(hub: HubUnderTest, name: str) -> "asyncio.Task[tuple[int, object]]":
    """An agent that waits for something."""
    agent = holder(hub, await hub.agent(name))
    return asyncio.create_task(agent.get(f"{CLUSTERS}?fieldSelector=metadata.name={name}&{NEVER}"))


async def headers_of(visitor: Visitor, path: str) -> tuple[int, "aiohttp.typedefs.LooseHeaders"]:
    connector = aiohttp.TCPConnector(ssl=visitor.context)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(visitor.hub.server + path) as response:
        await response.read()
        return response.status, dict(response.headers)


async def test_a_full_level_refuses_its_own_and_lets_operators_and_health_pass(narrow: HubUnderTest) -> None:
    waiting = [await slow(narrow, "a"), await slow(narrow, "b")]
    await until(lambda: narrow.limits.snapshot()[LIFELINES]["taken"] == 2)
    third = holder(narrow, await narrow.agent("c"))
    status, headers = await headers_of(third, f"{CLUSTERS}/c?timeout=2s")
    assert status == 429
    assert isinstance(headers, dict)
    assert (headers["Retry-After"], headers[LEVEL_HEADER]) == ("1", narrow.limits.pools[LIFELINES].uid)
    assert (await (await admin(narrow)).get(CLUSTERS))[0] == 200
    assert (await nobody(narrow).get("/readyz"))[0] == 200
    assert (await third.get("/apis"))[0] == 200
    await asyncio.gather(*waiting)
    assert (await third.get(f"{CLUSTERS}/c"))[0] == 200


async def test_an_identity_over_its_rate_is_told_when_to_come_again(tmp_path: Path) -> None:
    hub = HubUnderTest(tmp_path, capacity=Capacity(rate=0.001, burst=3))
    await hub.start()
    await hub.join("a")
    agent = holder(hub, await hub.agent("a"))
    answers = [(await agent.get(f"{CLUSTERS}/a"))[0] for _ in range(4)]
    assert answers == [200, 200, 200, 429]
    assert (await (await admin(hub)).get(CLUSTERS))[0] == 200
    await hub.stop()


async def test_a_write_that_its_deadline_overtakes_is_whole_or_not_there(hub: HubUnderTest) -> None:
    visitor = await admin(hub)
    with closing(sqlite3.connect(hub.folder / "hub.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # nobody else writes now
        answers = await asyncio.gather(
            *(visitor.ask("POST", f"{CLUSTERS}?timeout=300ms", cluster(f"late-{number}")) for number in range(5))
        )
        other.execute("ROLLBACK")
    assert [(status, body["reason"]) for status, body in answers] == [(504, "Timeout")] * 5
    assert (await visitor.ask("POST", CLUSTERS, cluster("after")))[0] == 201
    _, found = await visitor.get(CLUSTERS)
    names = {item["metadata"]["name"] for item in found["items"]}
    with closing(sqlite3.connect(hub.folder / "hub.db")) as database:
        logged = database.execute("SELECT name FROM changes WHERE kind LIKE 'managedclusters%' AND type = 'ADDED'").fetchall()
        stored = database.execute("SELECT name FROM objects WHERE kind LIKE 'managedclusters%'").fetchall()
    assert "after" in names
    assert {name for (name,) in logged} == {name for (name,) in stored} == names


async def exchange(hub: HubUnderTest, address: str) -> int:
    """The status of a login that nobody is let in by, asked for from an address of this machine."""
    document = {"kind": "TokenCredentialRequest", "apiVersion": f"{GROUP}/v1alpha1", "metadata": {}}
    document["spec"] = {"token": "x", "authenticator": {"kind": "ServiceAccount"}}
    connector = aiohttp.TCPConnector(ssl=nobody(hub).context, local_addr=(address, 0))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(hub.server + REQUESTS, json=document) as response,
    ):
        await response.read()
        return response.status


async def test_a_host_that_asks_without_a_credential_locks_out_itself_alone(tmp_path: Path) -> None:
    hub = HubUnderTest(tmp_path, capacity=Capacity(rate=0.001, burst=3))
    await hub.start()
    try:
        answers = [(await nobody(hub).get("/version/none"))[0] for _ in range(4)]
        assert answers == [403, 403, 403, 429]
        assert await exchange(hub, "127.0.0.1") == 429
        assert await exchange(hub, "127.0.0.2") == 201
    finally:
        await hub.stop()


async def test_one_identity_has_a_bounded_number_of_watches(tmp_path: Path) -> None:
    hub = HubUnderTest(tmp_path, capacity=Capacity(watches_each=2))
    await hub.start()
    try:
        for name in ("a", "b"):
            await hub.join(name)
        first, second = holder(hub, await hub.agent("a")), holder(hub, await hub.agent("b"))
        watch = f"{CLUSTERS}?watch=1&timeoutSeconds=20&fieldSelector=metadata.name="
        open_now = [asyncio.create_task(first.get(f"{watch}a")) for _ in range(2)]
        await until(lambda: hub.limits.snapshot()["watches"]["open"] == 2)
        status, headers = await headers_of(first, f"{watch}a")
        assert isinstance(headers, dict)
        assert (status, headers["Retry-After"]) == (429, "5")
        assert (await second.get(f"{CLUSTERS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name=b"))[0] == 200
        assert (await first.get(f"{CLUSTERS}/a"))[0] == 200
        for task in open_now:
            task.cancel()
        await until(lambda: hub.limits.snapshot()["watches"]["open"] == 0)
        assert (await first.get(f"{CLUSTERS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name=a"))[0] == 200
    finally:
        await hub.stop()
