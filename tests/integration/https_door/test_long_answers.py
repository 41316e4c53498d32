"""Long answers of the HTTPS door: whole lists in portions, watches that are cut and go on elsewhere, watches of sessions."""

import asyncio
import json
import tracemalloc
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from pydantic import SecretStr

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.https_door.storage.storage import ServiceStorage
from hub.ports import Transaction
from hub.registry.managedclusters import service as clusters
from machinery.client.rest import KubeClient
from machinery.errors import ConflictError
from machinery.meta.objects import Document, Key
from tests.fakes.rpc_stage import RpcStage
from tests.integration.https_door.conftest import CLUSTERS, HubUnderTest, Visitor, admin_of, holder
from tests.trials import soaked, trials

BIG = 40_000
PORTION = 10


def put_numbered(tx: Transaction, numbers: range) -> None:
    for number in numbers:
        name = f"edge-{number:04}"
        metadata = {
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-22T00:00:00Z",
            "annotations": {"big": f"{number:04}" * (BIG // 4)},
        }
        document = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": metadata}
        tx.objects.put(MANAGED_CLUSTERS, {**document, "spec": {"hubAcceptsClient": False}}, None, "tester")


def touch(tx: Transaction) -> None:
    """The last one changes, the one before it goes, another comes."""
    found = tx.objects.get(MANAGED_CLUSTERS, Key("", "edge-0029"))
    gone = tx.objects.get(MANAGED_CLUSTERS, Key("", "edge-0028"))
    assert found is not None
    assert gone is not None
    tx.objects.put(MANAGED_CLUSTERS, {**found.document, "spec": {"hubAcceptsClient": True}}, found, "tester")
    tx.objects.delete(MANAGED_CLUSTERS, gone, "tester")
    put_numbered(tx, range(900, 901))


@asynccontextmanager
async def listing(hub: HubUnderTest, query: str = "", **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
    connector = aiohttp.TCPConnector(ssl=holder(hub, await hub.admin()).context)
    async with (
        aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
        session.get(f"{hub.server}{CLUSTERS}{query}", headers={"Accept-Encoding": "identity", **headers}) as response,
    ):
        assert response.status == 200
        yield response


@pytest.mark.parametrize("query", ["", "?watch=1&timeoutSeconds=1"], ids=["list", "watch"])
async def test_export_never_holds_more_than_some_portions_of_a_list(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr("hub.https_door.storage.storage.PORTION", PORTION)
    count = 300
    for first in range(0, count, 50):
        await hub.store.run(put_numbered, range(first, first + 50))
    async with listing(hub, "?limit=300", **{"User-Agent": "curl/8.1"}) as response:
        assert b"\n" not in await response.read(), "long pages are not indented either; this also loads what is loaded once"
    size = 0
    tracemalloc.start()
    async with listing(hub, query, **{"User-Agent": "curl/8.1"}) as response:
        async for chunk in response.content.iter_chunked(1 << 16):
            size += len(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > count * BIG
    assert peak < 12 * PORTION * BIG < size / 2, peak


async def test_an_export_is_of_the_revision_at_which_it_began(hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.https_door.storage.storage.PORTION", PORTION)
    await hub.store.run(put_numbered, range(30))
    portions = 0
    list_ = ServiceStorage.list

    async def interrupted(self: ServiceStorage, *arguments: Any, **options: Any) -> Any:
        """Others write after the first portion."""
        nonlocal portions
        page = await list_(self, *arguments, **options)
        portions += 1
        if portions == 1:
            await hub.store.run(touch)
        return page

    monkeypatch.setattr(ServiceStorage, "list", interrupted)
    async with listing(hub, **{"Accept-Encoding": "gzip"}) as response:
        found = json.loads(zlib.decompress(await response.read(), 31))
    assert portions == 3
    assert [item["metadata"]["name"] for item in found["items"]] == [f"edge-{number:04}" for number in range(30)]
    assert (found["items"][-1]["spec"], found["kind"]) == ({"hubAcceptsClient": False}, "ManagedClusterList")
    revisions = [int(item["metadata"]["resourceVersion"]) for item in found["items"]]
    assert set(found["metadata"]) == {"resourceVersion"}
    assert max(revisions) <= int(found["metadata"]["resourceVersion"]) < await hub.store.read(lambda tx: tx.changes.newest())


async def test_initial_events_of_a_watch_are_of_one_revision(hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.https_door.storage.storage.PORTION", PORTION)
    await hub.store.run(put_numbered, range(30))
    list_, page = ServiceStorage.list, None

    async def interrupted(self: ServiceStorage, *arguments: Any, **options: Any) -> Any:
        nonlocal page
        page, is_first = await list_(self, *arguments, **options), page is None
        if is_first:
            await hub.store.run(touch)
        return page

    monkeypatch.setattr(ServiceStorage, "list", interrupted)
    async with listing(hub, "?watch=1&timeoutSeconds=1") as response:
        events = [json.loads(line) for line in (await response.read()).splitlines()]
    shown = [(event["type"], event["object"]["metadata"]["name"]) for event in events]
    later = [("MODIFIED", "edge-0029"), ("DELETED", "edge-0028"), ("ADDED", "edge-0900")]
    assert shown == [*(("ADDED", f"edge-{number:04}") for number in range(30)), *later]


async def test_export_of_metadata_or_of_whole_portions_is_complete(hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.https_door.storage.storage.PORTION", PORTION)
    await hub.store.run(put_numbered, range(2 * PORTION))
    async with listing(hub, Accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1") as response:
        found = json.loads(await response.read())
    assert (found["kind"], [len(item) for item in found["items"]]) == ("PartialObjectMetadataList", [3] * 2 * PORTION)


WATCH = {"watch": "1", "allowWatchBookmarks": "true"}
CHANGES = trials(500, 10_000)


@pytest.fixture
async def replicas(tmp_path: Path, migrated_postgres_url: str) -> AsyncIterator[list[HubUnderTest]]:
    async with AsyncExitStack() as stack:
        own = {name: {"replica_name": name, "database_url": SecretStr(migrated_postgres_url)} for name in ("one", "two")}
        hubs = [HubUnderTest(tmp_path / name, **settings) for name, settings in own.items()]
        for hub in hubs:
            await hub.start()
            stack.push_async_callback(hub.stop)
        yield hubs


def change(tx: Transaction, name: str, number: int) -> None:
    """Makes, changes or removes it, whatever is possible."""
    old = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    if old is not None and number % 3 == 0:
        tx.objects.delete(MANAGED_CLUSTERS, old, "test")
        return
    made: Document = {"metadata": {"name": name}, "spec": {"hubAcceptsClient": False}}
    document = made if old is None else old.document
    metadata = {**document["metadata"], "labels": {"number": str(number)}}
    clusters.put(tx, {**document, "metadata": metadata}, old, "test")


async def write(hubs: list[HubUnderTest], draw: Random) -> None:
    """So many changes of a few objects, by both replicas at once."""
    for start in range(0, CHANGES, 20):
        jobs = [(draw.choice(hubs), f"c{draw.randrange(40):02}", number) for number in range(start, start + 20)]
        await asyncio.gather(*(one_change(hub, name, number) for hub, name, number in jobs))


async def one_change(hub: HubUnderTest, name: str, number: int) -> None:
    while True:
        try:
            return await hub.store.run(change, name, number)
        except ConflictError:
            continue


@dataclass
class Client:
    """Lists once, and from there on knows only what its watches tell."""

    clients: list[KubeClient]
    draw: Random
    table: dict[str, str] = field(default_factory=dict)
    begun: int = 0
    place: int = 0
    tally: Counter[str] = field(default_factory=Counter)

    async def list(self) -> None:
        answer = await self.draw.choice(self.clients).get(CLUSTERS)
        self.begun = self.place = int(answer["metadata"]["resourceVersion"])
        self.table = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in answer["items"]}

    async def watch(self) -> None:
        """A short watch at one of the replicas. It is cut after a few events, or after a moment."""
        left = self.draw.randrange(60)
        async with self.draw.choice(self.clients).watch(
            CLUSTERS, {**WATCH, "resourceVersion": str(self.place)}, within=timedelta(seconds=60)
        ) as events:
            try:
                async with asyncio.timeout(self.draw.uniform(0, 1)):
                    async for event in events:
                        self._take(event.type, event.object["metadata"])
                        left -= 1
                        if left < 0:
                            break
            except TimeoutError:
                pass
        self.tally["watches"] += 1

    def _take(self, kind: str, metadata: dict[str, str]) -> None:
        revision, name = int(metadata["resourceVersion"]), metadata.get("name", "")
        self.tally[kind] += 1
        if kind == "BOOKMARK":
            assert revision >= self.place
        else:
            assert revision > self.place, f"{kind} {name} at {revision} was delivered after {self.place}"
        match kind:
            case "ADDED":
                assert name not in self.table
                self.table[name] = metadata["resourceVersion"]
            case "MODIFIED":
                assert name in self.table
                self.table[name] = metadata["resourceVersion"]
            case "DELETED":
                del self.table[name]
        self.place = revision


@pytest.mark.postgres
@pytest.mark.timeout(1800)
@soaked(CHANGES)
async def test_clients_that_are_cut_and_sent_elsewhere_see_exactly_what_the_table_holds(replicas: list[HubUnderTest]) -> None:
    async with AsyncExitStack() as stack:
        paths = [await stack.enter_async_context(await KubeClient.from_file(await hub.admin())) for hub in replicas]
        watchers = [Client(paths, Random(number)) for number in range(3)]
        await asyncio.gather(*(watcher.list() for watcher in watchers))
        writing = asyncio.create_task(write(replicas, Random(11)))
        await asyncio.gather(*(follow(watcher, writing) for watcher in watchers))
        newest = await replicas[0].store.read(lambda tx: tx.changes.newest())
        truth = Client(paths, Random(0))
        await truth.list()
        for watcher in watchers:
            async with asyncio.timeout(60):
                while watcher.place < newest:
                    await watcher.watch()
            assert watcher.table == truth.table
            assert watcher.tally["watches"] > 5
            changes = watcher.tally["ADDED"] + watcher.tally["MODIFIED"] + watcher.tally["DELETED"]
            assert changes == newest - watcher.begun, "each change is delivered once"


async def follow(watcher: Client, writing: asyncio.Task[None]) -> None:
    while not writing.done():
        await watcher.watch()
    await writing


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
