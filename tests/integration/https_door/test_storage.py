"""The HTTPS door's storage over a real database: objects, watches, heartbeats as Leases, and the rate of events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from hub.api.liveness import Beat
from hub.api.meta.change import EVENTS
from hub.api.query.parsing import where_of
from hub.https_door.storage.feed import ChangeFeed
from hub.https_door.storage.leases import FIRST_BEAT, LeaseStorage
from hub.https_door.storage.storage import PER_NAMESPACE, EventStorage, ServiceStorage
from hub.registry.managedclusters import service as clusters
from hub.store import SqlStore
from machinery.apiserver.kinds.events import EVENT
from machinery.apiserver.storage import Actor, GroupResource
from machinery.errors import AlreadyExistsError, ExpiredError, ForbiddenError, TooManyRequestsError
from machinery.identity import ClusterName
from machinery.meta import conditions
from machinery.meta.objects import Document, Key, Query, WatchEvent
from machinery.meta.timestamps import format_micro_time
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import ManualClock, SystemClock
from tests.checks import check_refusal_of, present
from tests.fakes.stage import until

CLUSTERS = GroupResource(f"cluster.{GROUP_SUFFIX}", "managedclusters")
ADMIN = Actor("admin", ("system:masters",))
EVERYTHING = Query()


def cluster(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"hubAcceptsClient": False}}


def labelled(document: Mapping[str, Any], **labels: str) -> dict[str, Any]:
    return {**document, "metadata": {**document["metadata"], "labels": labels}}


async def create(storage: ServiceStorage, name: str, **labels: str) -> int:
    return (await storage.create(CLUSTERS, Key("", name), cluster(name, **labels), ADMIN)).revision


async def take_names(events: AsyncIterator[WatchEvent | int], count: int) -> list[tuple[str, str]]:
    """The next `count` events, bookmarks left out."""
    watched: list[tuple[str, str]] = []
    async with asyncio.timeout(5):
        while len(watched) < count:
            event = await anext(events)
            if not isinstance(event, int):
                watched.append((event.type.value, event.stored.key.name))
    return watched


async def test_entering_and_leaving_a_condition_is_added_and_deleted(storage: ServiceStorage) -> None:
    """What an object was before is known by its labels and fields alone."""
    revision = await create(storage, "a")
    where = where_of('labels.tier == "gold" && !accepted && available != "True"', datetime.now(UTC), watched=True)
    unheard = where_of('!has(available) && labels.tier =~ "g.*d"', datetime.now(UTC), watched=True)
    async with (
        storage.watch(CLUSTERS, Query(where=where), after=revision) as never,
        storage.watch(CLUSTERS, Query(where=unheard), after=revision) as events,
    ):
        for number, tier in enumerate(("gold", "gold", "iron", "iron")):
            await storage.update(CLUSTERS, Key("", "a"), partial(labelled, tier=tier, n=str(number)), ADMIN)
        await create(storage, "b", tier="gold")
        await storage.update(CLUSTERS, Key("", "b"), lambda _: None, ADMIN)
        of_a = [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
        assert await take_names(events, 5) == [*of_a, ("ADDED", "b"), ("DELETED", "b")]
        first = await anext(never)
        while not isinstance(first, int):
            pytest.fail(f"an uncommitted change was delivered: {first}")


LEASES = GroupResource("coordination.k8s.io", "leases")
HOUR = timedelta(hours=1)
EDGE1 = Key("edge1", "managed-cluster-lease")
WINDOW = 1.0  # seconds: a watch reports at most one beat of a cluster in this time


@pytest.fixture
async def leases(store: SqlStore, feed: ChangeFeed, storage: ServiceStorage) -> LeaseStorage:
    await join(store, "edge1")
    return LeaseStorage(store, feed, storage, SystemClock())


async def join(store: SqlStore, name: str) -> None:
    document = {"metadata": {"name": name}, "spec": {"hubAcceptsClient": True, "leaseDurationSeconds": 30}}
    await store.run(clusters.put, document, None, "test")


async def beat(store: SqlStore, name: str) -> None:
    await store.run(lambda tx: tx.heartbeats.store([Beat(ClusterName(name), timedelta(), available=True)]))


async def test_a_heartbeat_is_shown_and_written_as_the_lease_of_its_cluster(leases: LeaseStorage, store: SqlStore) -> None:
    lease = (await leases.get(LEASES, EDGE1)).document
    assert lease["metadata"]["labels"] == {"open-cluster-management.io/cluster-name": "edge1"}
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseDurationSeconds"]) == ("managed-cluster-lease", 30)

    await leases.update(LEASES, EDGE1, lambda old: {**old, "spec": {}}, ADMIN, dry_run=True)
    assert await store.read(lambda tx: tx.heartbeats.of(ClusterName("edge1"))) is None

    await check_refusal_of(AlreadyExistsError, leases.create(LEASES, EDGE1, {"metadata": {}}, ADMIN))
    with pytest.raises(ForbiddenError, match="does not exist"):
        await leases.create(LEASES, Key("edge9", "managed-cluster-lease"), {"metadata": {}}, ADMIN)
    with pytest.raises(ForbiddenError, match="it goes with the cluster"):
        await leases.update(LEASES, EDGE1, lambda _: None, ADMIN)

    await beat(store, "edge1")
    first = await leases.get(LEASES, EDGE1)
    await beat(store, "edge1")
    second = await leases.get(LEASES, EDGE1)
    assert second.revision > first.revision > FIRST_BEAT
    assert second.document["spec"]["renewTime"] > first.document["spec"]["renewTime"]

    await leases.update(LEASES, EDGE1, renewed(datetime.now(UTC)), ADMIN)
    before = await leases.revision()
    written = await leases.update(LEASES, EDGE1, renewed(datetime.now(UTC)), ADMIN)
    stored = present(await store.read(lambda tx: tx.heartbeats.of(ClusterName("edge1"))))
    assert round(present(stored.at).timestamp() * 1_000_000) == written.revision
    assert await leases.revision() == before, "heartbeats are not news"

    for off, status in ((HOUR, "False"), (0 * HOUR, "True"), (-HOUR, "False")):
        await leases.update(LEASES, EDGE1, renewed(datetime.now(UTC) + off), ADMIN)
        cluster = await store.read(clusters.find, ClusterName("edge1"))
        assert present(conditions.find(cluster.document["status"]["conditions"], conditions.CLOCK_SYNCED)).status == status, off


def renewed(at: datetime) -> Callable[[Document], dict[str, Any]]:
    return lambda old: {**old, "spec": {**old["spec"], "renewTime": format_micro_time(at)}}


async def test_pages_hold_both_kinds_in_the_order_of_their_keys(leases: LeaseStorage, store: SqlStore) -> None:
    await join(store, "edge2")
    for namespace, name in (("edge1", "addon"), ("edge1", "z"), ("default", "x")):
        await leases.create(LEASES, Key(namespace, name), {"metadata": {"name": name, "namespace": namespace}}, ADMIN)
    keys = [f"{stored.key.namespace}/{stored.key.name}" for stored in (await leases.list(LEASES, Query())).items]
    expected = ["default/x", "edge1/addon", "edge1/managed-cluster-lease", "edge1/z", "edge2/managed-cluster-lease"]
    assert keys == expected
    paged, after = [], None
    while True:
        page = await leases.list(LEASES, Query(limit=2, after=after))
        paged += [f"{stored.key.namespace}/{stored.key.name}" for stored in page.items]
        if (after := page.after) is None:
            break
    assert paged == expected


async def test_a_watch_tells_beats_new_clusters_and_ordinary_leases(leases: LeaseStorage, store: SqlStore) -> None:
    async with leases.watch(LEASES, Query(), after=await leases.revision()) as events:
        assert await take_names(events, 1) == [("MODIFIED", "managed-cluster-lease")]  # it is level now
        await beat(store, "edge1")
        assert await take_names(events, 1) == [("MODIFIED", "managed-cluster-lease")]
        await leases.create(LEASES, Key("default", "x"), {"metadata": {"name": "x", "namespace": "default"}}, ADMIN)
        assert await take_names(events, 1) == [("ADDED", "x")]
        await join(store, "edge2")
        assert await take_names(events, 1) == [("ADDED", "managed-cluster-lease")]


async def first_events(leases: LeaseStorage, after: int, count: int, query: Query | None = None) -> list[tuple[str, str, int]]:
    """The first `count` events of a watch."""
    watched: list[tuple[str, str, int]] = []
    async with asyncio.timeout(10), leases.watch(LEASES, query or Query(), after=after) as events:
        while len(watched) < count:
            event = await anext(events)
            if isinstance(event, WatchEvent):
                watched.append(
                    (event.type.value, f"{event.stored.key.namespace}/{event.stored.key.name}", event.stored.revision)
                )
    return watched


def ordinary(name: str, *, step: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"leaseTransitions": step}}


async def test_watch_resumes_from_a_beat_and_gets_what_it_missed_as_it_is_now(leases: LeaseStorage, store: SqlStore) -> None:
    await join(store, "edge2")
    for name in ("kept", "gone"):
        await leases.create(LEASES, Key("default", name), ordinary(name, step=0), ADMIN)
    before = await leases.create(LEASES, Key("default", "before"), ordinary("before", step=0), ADMIN)
    await beat(store, "edge1")
    resumed = (await leases.get(LEASES, EDGE1)).revision
    await leases.update(LEASES, Key("default", "kept"), lambda old: {**old, "spec": {"leaseTransitions": 1}}, ADMIN)
    newest = await leases.update(LEASES, Key("default", "kept"), lambda old: {**old, "spec": {"leaseTransitions": 2}}, ADMIN)
    gone = await leases.update(LEASES, Key("default", "gone"), lambda _: None, ADMIN)
    removed = await store.run(clusters.remove, await store.read(clusters.find, ClusterName("edge2")), "test")
    await beat(store, "edge1")
    assert await first_events(leases, resumed, 5) == [
        ("DELETED", "edge2/managed-cluster-lease", removed.stored.revision),
        *(("ADDED", "default/before", before.revision), ("MODIFIED", "default/kept", newest.revision)),
        ("DELETED", "default/gone", gone.revision),
        ("MODIFIED", "edge1/managed-cluster-lease", (await leases.get(LEASES, EDGE1)).revision),
    ]


async def test_watches_resume_in_a_namespace_and_expire_before_the_log_begins(leases: LeaseStorage, store: SqlStore) -> None:
    await join(store, "edge2")
    await beat(store, "edge1")
    lease = await leases.get(LEASES, EDGE1)
    events = await first_events(leases, lease.revision, 1, Query(namespace="edge1"))
    assert events == [("MODIFIED", "edge1/managed-cluster-lease", lease.revision)]

    listed = (await leases.list(LEASES, Query())).revision
    removed = await store.run(clusters.remove, await store.read(clusters.find, ClusterName("edge2")), "test")
    deletion = ("DELETED", "edge2/managed-cluster-lease", removed.stored.revision)
    assert deletion in await first_events(leases, listed, 2)
    later = await leases.create(LEASES, Key("default", "x"), ordinary("x", step=0), ADMIN)
    assert deletion in await first_events(leases, later.revision, 2), "a watch passes other Leases on before it looks"

    await beat(store, "edge1")
    old = (await leases.get(LEASES, EDGE1)).revision
    await store.run(lambda tx: tx.changes.compact(tx.now + timedelta(hours=1)))
    await join(store, "edge2")
    await store.run(lambda tx: tx.changes.compact(tx.now + timedelta(hours=1)))
    with pytest.raises(ExpiredError, match="too old resource version"):
        async with leases.watch(LEASES, Query(), after=old - 3_600_000_000):
            pytest.fail("the watch was opened")


async def test_beats_within_a_window_are_one_change_and_all_watchers_get_it_by_the_same_event(
    leases: LeaseStorage, store: SqlStore
) -> None:
    """However long the machine takes, a watcher gets at most one change per window."""

    async def follow(watched: list[WatchEvent]) -> None:
        async with leases.watch(LEASES, Query(), after=await leases.revision()) as events:
            async for event in events:
                if isinstance(event, WatchEvent):
                    watched.append(event)  # noqa: PERF401 - it is looked at meanwhile

    watchers: list[list[WatchEvent]] = [[], [], []]
    async with asyncio.TaskGroup() as group:
        watches = [group.create_task(follow(watched)) for watched in watchers]
        await until(lambda: all(watchers))
        began = asyncio.get_running_loop().time()
        for _ in range(5):
            await beat(store, "edge1")
        newest = (await leases.get(LEASES, EDGE1)).revision
        await until(lambda: all(watched[-1].stored.revision == newest for watched in watchers))
        windows = 1 + int((asyncio.get_running_loop().time() - began) / WINDOW)
        for watch in watches:
            watch.cancel()
    assert max(len(watched) - 1 for watched in watchers) <= windows, "each got one event at its start"
    assert len({id(watched[-1]) for watched in watchers}) == 1


AGENT = Actor("agent")


def event(number: int, namespace: str = "default") -> tuple[Key, dict[str, Any]]:
    key = Key(namespace, f"e{number}")
    metadata = {"name": key.name, "namespace": namespace}
    return key, {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": {"name": "x"}}


async def test_a_namespace_and_all_namespaces_together_have_a_rate_of_events(store: SqlStore, feed: ChangeFeed) -> None:
    clock, slow = ManualClock(), (1, 3)
    events = EventStorage(store, feed, GROUP_SUFFIX, clock, per_namespace=slow)
    for number in range(3):
        await events.create(EVENT.key, *event(number), AGENT)
    with pytest.raises(TooManyRequestsError, match='too many events in namespace "default"') as refused:
        await events.create(EVENT.key, *event(3), AGENT)
    assert refused.value.retry_after == timedelta(seconds=1)
    await events.create(EVENT.key, *event(3, "kube-system"), AGENT)
    clock.advance(timedelta(seconds=1))
    await events.create(EVENT.key, *event(3), AGENT)
    assert len((await store.read(lambda tx: tx.objects.find(EVENTS, Query()))).items) == 5

    events = EventStorage(store, feed, GROUP_SUFFIX, ManualClock(), together=(1, 1))
    await events.create(EVENT.key, *event(11), AGENT)
    await check_refusal_of(TooManyRequestsError, events.create(EVENT.key, *event(12, "kube-system"), AGENT))

    clock = ManualClock()
    events = EventStorage(store, feed, GROUP_SUFFIX, clock)
    key, document = event(21)
    await events.create(EVENT.key, key, document, AGENT)

    async def again(count: int, *, dry_run: bool = False) -> None:
        await events.update(EVENT.key, key, lambda old: {**old, "count": count}, AGENT, dry_run=dry_run)

    for count in range(1, PER_NAMESPACE[1]):
        await again(count)
    await again(PER_NAMESPACE[1], dry_run=True)
    await check_refusal_of(TooManyRequestsError, again(PER_NAMESPACE[1]), match='too many events in namespace "default"')
    await events.update(EVENT.key, key, lambda old: old, AGENT)
    clock.advance(timedelta(seconds=1))
    await again(PER_NAMESPACE[1])
    clock.advance(-timedelta(seconds=1))
    await events.update(EVENT.key, key, lambda _old: None, AGENT)


async def test_storm_of_events_reaches_no_cluster_watch(store: SqlStore, feed: ChangeFeed, storage: ServiceStorage) -> None:
    events = EventStorage(store, feed, GROUP_SUFFIX, ManualClock())
    async with storage.watch(CLUSTERS, Query(), after=await storage.revision()) as watched:
        for number in range(2):  # fewer than a watcher's queue holds here, so that a watcher that receives them shows it
            await events.create(EVENT.key, *event(number), AGENT)
        await create(storage, "edge1")
        assert await take_names(watched, 1) == [("ADDED", "edge1")]
