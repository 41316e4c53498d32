"""Heartbeats shown as Leases, beside leases that are objects."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hub.apiserver.feed import ChangeFeed
from hub.apiserver.leases import FIRST_BEAT, LeaseStorage
from hub.apiserver.storage import ServiceStorage
from hub.domain.heartbeat import Beat
from hub.services import clusters, heartbeats
from hub.store import SqlStore
from machinery import conditions
from machinery.apiserver.storage import Actor, Document, Event, GroupResource, Key, Selection
from machinery.clock import SystemClock
from machinery.errors import AlreadyExistsError, ExpiredError, ForbiddenError
from machinery.identity import ClusterName
from machinery.timestamps import format_micro_time
from tests.fakes.stage import until

LEASES = GroupResource("coordination.k8s.io", "leases")
ADMIN = Actor("admin")
HOUR = timedelta(hours=1)
EDGE1 = Key("edge1", "managed-cluster-lease")
WINDOW = 1.0
"""Seconds: a watch tells one beat of a cluster in so long."""


@pytest.fixture
async def leases(store: SqlStore, feed: ChangeFeed, storage: ServiceStorage) -> LeaseStorage:
    await join(store, "edge1")
    return LeaseStorage(store, feed, storage, SystemClock())


async def join(store: SqlStore, name: str) -> None:
    document = {"metadata": {"name": name}, "spec": {"hubAcceptsClient": True, "leaseDurationSeconds": 30}}
    await store.run(clusters.put, document, None, "test")


async def beat(store: SqlStore, name: str) -> None:
    await store.run(heartbeats.flush, [Beat(ClusterName(name), timedelta(), available=True)])


async def take(events: AsyncIterator[Event | int], count: int) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []
    async with asyncio.timeout(10):
        while len(told) < count:
            event = await anext(events)
            if not isinstance(event, int):
                told.append((event.type.value, str(event.stored.key.name)))
    return told


async def test_a_cluster_has_its_lease_from_the_start_as_ocm_makes_it(leases: LeaseStorage) -> None:
    lease = json.loads((await leases.get(LEASES, EDGE1)).document)
    assert lease["metadata"]["labels"] == {"open-cluster-management.io/cluster-name": "edge1"}
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseDurationSeconds"]) == ("managed-cluster-lease", 30)


async def test_a_beat_moves_renew_time_and_resource_version(leases: LeaseStorage, store: SqlStore) -> None:
    await beat(store, "edge1")
    first = await leases.get(LEASES, EDGE1)
    await beat(store, "edge1")
    second = await leases.get(LEASES, EDGE1)
    assert second.revision > first.revision > FIRST_BEAT
    assert json.loads(second.document)["spec"]["renewTime"] > json.loads(first.document)["spec"]["renewTime"]


async def test_a_written_lease_is_a_beat_and_no_change_of_the_log(leases: LeaseStorage, store: SqlStore) -> None:
    await leases.update(LEASES, EDGE1, renewed(datetime.now(UTC)), ADMIN)
    before = await leases.revision()
    written = await leases.update(LEASES, EDGE1, renewed(datetime.now(UTC)), ADMIN)
    stored = await store.read(lambda tx: tx.heartbeats.of(ClusterName("edge1")))
    assert stored is not None
    assert stored.at is not None
    assert round(stored.at.timestamp() * 1_000_000) == written.revision
    assert await leases.revision() == before, "heartbeats are not news"


@pytest.mark.parametrize(("off", "status"), [(0 * HOUR, "True"), (HOUR, "False"), (-HOUR, "False")])
async def test_the_time_that_a_client_writes_says_how_right_its_clock_is(
    leases: LeaseStorage, store: SqlStore, off: timedelta, status: str
) -> None:
    await leases.update(LEASES, EDGE1, renewed(datetime.now(UTC) + off), ADMIN)
    cluster = await store.read(clusters.find, ClusterName("edge1"))
    found = conditions.find(cluster.document["status"]["conditions"], conditions.CLOCK_SYNCED)
    assert found is not None
    assert found.status == status


def renewed(at: datetime) -> Callable[[Document], dict[str, Any]]:
    return lambda old: {**old, "spec": {**old["spec"], "renewTime": format_micro_time(at)}}


async def test_a_dry_run_is_no_beat(leases: LeaseStorage, store: SqlStore) -> None:
    await leases.update(LEASES, EDGE1, lambda old: {**old, "spec": {}}, ADMIN, dry_run=True)
    assert await store.read(lambda tx: tx.heartbeats.of(ClusterName("edge1"))) is None


async def test_the_lease_of_a_heartbeat_cannot_be_made_or_deleted(leases: LeaseStorage) -> None:
    with pytest.raises(AlreadyExistsError):
        await leases.create(LEASES, EDGE1, {"metadata": {}}, ADMIN)
    with pytest.raises(ForbiddenError, match="does not exist"):
        await leases.create(LEASES, Key("edge9", "managed-cluster-lease"), {"metadata": {}}, ADMIN)
    with pytest.raises(ForbiddenError, match="it goes with the cluster"):
        await leases.update(LEASES, EDGE1, lambda _: None, ADMIN)


async def test_pages_hold_both_kinds_in_the_order_of_their_keys(leases: LeaseStorage, store: SqlStore) -> None:
    await join(store, "edge2")
    for namespace, name in (("edge1", "addon"), ("edge1", "z"), ("default", "x")):
        document = {"metadata": {"name": name, "namespace": namespace}}
        await leases.create(LEASES, Key(namespace, name), document, ADMIN)
    everything = (await leases.list(LEASES, Selection())).items
    keys = [f"{stored.key.namespace}/{stored.key.name}" for stored in everything]
    expected = ["default/x", "edge1/addon", "edge1/managed-cluster-lease", "edge1/z", "edge2/managed-cluster-lease"]
    assert keys == expected
    paged, after = [], None
    while True:
        page = await leases.list(LEASES, Selection(), limit=2, after=after)
        paged += [f"{stored.key.namespace}/{stored.key.name}" for stored in page.items]
        after = page.after
        if after is None:
            break
    assert paged == expected


async def test_a_watch_tells_beats_new_clusters_and_ordinary_leases(leases: LeaseStorage, store: SqlStore) -> None:
    async with leases.watch(LEASES, Selection(), after=await leases.revision()) as events:
        assert await take(events, 1) == [("MODIFIED", "managed-cluster-lease")], "whatever the client has, it is level now"
        await beat(store, "edge1")
        assert await take(events, 1) == [("MODIFIED", "managed-cluster-lease")]
        await leases.create(LEASES, Key("default", "x"), {"metadata": {"name": "x", "namespace": "default"}}, ADMIN)
        assert await take(events, 1) == [("ADDED", "x")]
        await join(store, "edge2")
        assert await take(events, 1) == [("ADDED", "managed-cluster-lease")]


async def told_first(
    leases: LeaseStorage, after: int, count: int, selection: Selection | None = None
) -> list[tuple[str, str, int]]:
    """The first `count` things that a watch tells."""
    told: list[tuple[str, str, int]] = []
    async with asyncio.timeout(10), leases.watch(LEASES, selection or Selection(), after=after) as events:
        while len(told) < count:
            event = await anext(events)
            if isinstance(event, Event):
                told.append((event.type.value, f"{event.stored.key.namespace}/{event.stored.key.name}", event.stored.revision))
    return told


def ordinary(name: str, *, step: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"leaseTransitions": step}}


async def test_a_watch_resumes_from_a_beat_and_is_told_what_it_missed_as_it_is_now(
    leases: LeaseStorage, store: SqlStore
) -> None:
    await join(store, "edge2")
    for name in ("kept", "gone"):
        await leases.create(LEASES, Key("default", name), ordinary(name, step=0), ADMIN)
    before = await leases.create(LEASES, Key("default", "before"), ordinary("before", step=0), ADMIN)
    await beat(store, "edge1")
    resumed = (await leases.get(LEASES, EDGE1)).revision
    await leases.update(LEASES, Key("default", "kept"), lambda old: {**old, "spec": {"leaseTransitions": 1}}, ADMIN)
    newest = await leases.update(LEASES, Key("default", "kept"), lambda old: {**old, "spec": {"leaseTransitions": 2}}, ADMIN)
    gone = await leases.update(LEASES, Key("default", "gone"), lambda _: None, ADMIN)
    edge2 = await store.read(clusters.find, ClusterName("edge2"))
    removed = await store.run(clusters.remove, edge2, "test")
    await beat(store, "edge1")
    lease = await leases.get(LEASES, EDGE1)
    assert await told_first(leases, resumed, 5) == [
        ("DELETED", "edge2/managed-cluster-lease", removed.stored.revision),
        ("ADDED", "default/before", before.revision),
        ("MODIFIED", "default/kept", newest.revision),
        ("DELETED", "default/gone", gone.revision),
        ("MODIFIED", "edge1/managed-cluster-lease", lease.revision),
    ]


async def test_a_watch_of_one_namespace_resumes_from_its_own_beat(leases: LeaseStorage, store: SqlStore) -> None:
    await join(store, "edge2")
    await beat(store, "edge1")
    lease = await leases.get(LEASES, EDGE1)
    told = await told_first(leases, lease.revision, 1, Selection(namespace="edge1"))
    assert told == [("MODIFIED", "edge1/managed-cluster-lease", lease.revision)]


async def test_a_watch_from_a_revision_hears_of_clusters_that_went_meanwhile(leases: LeaseStorage, store: SqlStore) -> None:
    await join(store, "edge2")
    listed = (await leases.list(LEASES, Selection())).revision
    edge2 = await store.read(clusters.find, ClusterName("edge2"))
    removed = await store.run(clusters.remove, edge2, "test")
    assert ("DELETED", "edge2/managed-cluster-lease", removed.stored.revision) in await told_first(leases, listed, 2)


async def test_a_beat_from_before_the_log_begins_is_too_old(leases: LeaseStorage, store: SqlStore) -> None:
    await beat(store, "edge1")
    old = (await leases.get(LEASES, EDGE1)).revision
    await store.run(lambda tx: tx.changes.compact(tx.now + timedelta(hours=1)))
    await join(store, "edge2")
    await store.run(lambda tx: tx.changes.compact(tx.now + timedelta(hours=1)))
    with pytest.raises(ExpiredError, match="too old resource version"):
        async with leases.watch(LEASES, Selection(), after=old - 3_600_000_000):
            pytest.fail("the watch was opened")


async def test_beats_within_a_window_are_one_change_and_all_watchers_are_told_by_the_same_event(
    leases: LeaseStorage, store: SqlStore
) -> None:
    """However long the machine takes, a watcher is told of no more changes than there were windows."""

    async def follow(told: list[Event]) -> None:
        async with leases.watch(LEASES, Selection(), after=await leases.revision()) as events:
            async for event in events:
                if isinstance(event, Event):
                    told.append(event)  # noqa: PERF401 - it is looked at meanwhile

    watchers: list[list[Event]] = [[], [], []]
    async with asyncio.TaskGroup() as group:
        watches = [group.create_task(follow(told)) for told in watchers]
        await until(lambda: all(watchers))
        began = asyncio.get_running_loop().time()
        for _ in range(5):
            await beat(store, "edge1")
        newest = (await leases.get(LEASES, EDGE1)).revision
        await until(lambda: all(told[-1].stored.revision == newest for told in watchers))
        windows = 1 + int((asyncio.get_running_loop().time() - began) / WINDOW)
        for watch in watches:
            watch.cancel()
    assert max(len(told) - 1 for told in watchers) <= windows, "each was told once when it began"
    assert len({id(told[-1]) for told in watchers}) == 1
