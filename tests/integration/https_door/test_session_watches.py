"""Agents' sessions on all replicas, as lists, watches and hubctl show them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.fakes.rpc_stage import RpcStage
from tests.integration.https_door.conftest import HubUnderTest, Visitor, admin_of

SESSIONS = "/apis/hub.open-cluster-management.io/v1alpha1/clustersessions"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
EXPIRED = 410


class Replica(RpcStage, HubUnderTest):  # type: ignore[misc]  # `join` is that of RpcStage
    """One replica with both doors."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def settings(request: pytest.FixtureRequest) -> list[Mapping[str, Any]]:
    """Settings of one hub on SQLite, or of two replicas on PostgreSQL."""
    if request.param == "sqlite":
        return [{"replica_name": "one"}]
    url = SecretStr(request.getfixturevalue("migrated_postgres_url"))
    return [{"replica_name": name, "database_url": url} for name in ("one", "two")]


@asynccontextmanager
async def running(folder: Path, settings: list[Mapping[str, Any]]) -> AsyncIterator[list[Replica]]:
    async with AsyncExitStack() as stack:
        replicas = [Replica(folder / each["replica_name"], **each) for each in settings]
        for replica in replicas:
            await replica.start()
            stack.push_async_callback(replica.stop)
        yield replicas
        for channel in (channel for replica in replicas for channel in replica.channels):
            await channel.close()


async def listed(admin: Visitor, query: str = "") -> tuple[list[str], dict[str, Any]]:
    status, answer = await admin.get(f"{SESSIONS}?{query}")
    assert status == 200, answer
    return [each["metadata"]["name"] for each in answer["items"]], answer["metadata"]


async def test_watch_sees_sessions_of_all_replicas_open_move_and_end_without_a_change(
    tmp_path: Path, settings: list[Mapping[str, Any]]
) -> None:
    async with running(tmp_path, settings) as replicas:
        holder, other = replicas[0], replicas[-1]
        agents = {name: await holder.enrol(name) for name in ("edge1", "edge2", "edge3")}
        admin = await admin_of(other)
        assert await listed(admin) == ([], await only_revision(admin))
        start = (await only_revision(admin))["resourceVersion"]
        async with (
            admin.watch(f"{SESSIONS}?watch=1&resourceVersion={start}") as watch,
            admin.watch(f"{SESSIONS}?watch=1&fieldSelector=metadata.name=edge2") as of_another,
        ):
            stream, opened = await holder.welcomed(agents["edge1"]), await watch.event()
            assert (opened["type"], opened["object"]["metadata"]["name"]) == ("ADDED", "edge1")
            about = {"connected": True, "replica": "one", "agent": "agent", "agentVersion": "1.2.3"}
            assert about.items() <= opened["object"]["status"].items()
            await stream.beat(1)
            changes = await other.store.read(lambda tx: tx.changes.newest())
            found = (await admin.get(f"{SESSIONS}/edge1"))[1]
            assert {"lastHeartbeatTime"} == found["status"].keys() - opened["object"]["status"].keys()
            newer, moved = await other.welcomed(agents["edge1"]), await watch.event()
            assert (moved["type"], moved["object"]["status"]["replica"]) == ("MODIFIED", other.hub.core.resources.replica)
            await newer.close()
            ended = await watch.event()
            assert (ended["type"], ended["object"]["status"]["connected"]) == ("DELETED", False)
            assert await listed(admin) == ([], {"resourceVersion": ended["object"]["metadata"]["resourceVersion"]})
            assert await other.store.read(lambda tx: tx.changes.newest()) == changes, "a session is no change"
            for name in ("edge2", "edge3"):
                await holder.welcomed(agents[name])
                await watch.event()
            assert (await of_another.event())["object"]["metadata"]["name"] == "edge2"
        async with admin.watch(f"{SESSIONS}?watch=1&resourceVersion={start}") as again:
            assert [await again.type() for _ in range(5)] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "ADDED"]
        async with admin.watch(f"{SESSIONS}?watch=1") as present:
            assert [(await present.event())["object"]["metadata"]["name"] for _ in range(2)] == ["edge2", "edge3"]
        assert (await listed(admin, f"resourceVersion={start}&resourceVersionMatch=Exact"))[0] == []
        first, page = await listed(admin, "limit=1")
        assert first == ["edge2"]
        assert (await listed(admin, f"limit=1&continue={page['continue']}"))[0] == ["edge3"]
        table = (await admin.ask("GET", SESSIONS, Accept=TABLE))[1]
        assert [row["cells"][:4] for row in table["rows"]] == [[name, True, "one", "1.2.3"] for name in ("edge2", "edge3")]
        for unknown in ("1", str(int(start) + 10**12)):
            assert (await admin.get(f"{SESSIONS}?resourceVersion={unknown}"))[0] == EXPIRED
            async with admin.watch(f"{SESSIONS}?watch=1&resourceVersion={unknown}") as refused:
                assert (await refused.event())["object"]["code"] == EXPIRED


async def only_revision(admin: Visitor) -> dict[str, Any]:
    return {"resourceVersion": (await listed(admin))[1]["resourceVersion"]}


async def test_watch_that_is_far_behind_ends_and_must_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.https_door.storage.sessions.MAX_EVENTS", 1)
    async with running(tmp_path, [{"replica_name": "one"}]) as (hub,):
        agent, admin = await hub.enrol("edge1"), await admin_of(hub)
        start = (await only_revision(admin))["resourceVersion"]
        for is_open in (True, False):
            if is_open:
                stream = await hub.welcomed(agent)
            else:
                await stream.close()
            await hub.session_recorded(is_open=is_open)
            assert await listed(admin) == (["edge1"] * is_open, await only_revision(admin))
        async with admin.watch(f"{SESSIONS}?watch=1&resourceVersion={start}") as late:
            assert (await late.event())["object"]["reason"] == "Expired"


async def test_hubctl_prints_a_cluster_again_when_its_session_comes_or_goes(tmp_path: Path) -> None:
    async with running(tmp_path, [{"replica_name": "one"}]) as (hub,):
        agent, watching = await hub.enrol("edge1"), await hub.start_hubctl("get", "clusters", "-w")
        assert (await watching.line()).endswith("AGENT")
        assert (await watching.line()).endswith("(no session)")
        stream = await hub.welcomed(agent)
        assert (await watching.line()).endswith("1.2.3")
        assert "edge1" in await hub.output("hubctl get sessions")
        await stream.close()
        assert (await watching.line()).endswith("(no session)")
        assert "Traceback" not in await watching.end()
