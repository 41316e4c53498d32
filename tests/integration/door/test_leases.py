"""Heartbeats shown as Leases, beside leases that are objects."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from hub.apiserver.feed import ChangeFeed
from hub.apiserver.leases import FIRST_BEAT, LeaseStorage
from hub.apiserver.storage import ServiceStorage
from hub.domain.heartbeat import Beat
from hub.services import clusters, heartbeats
from hub.store import SqlStore
from machinery.apiserver.storage import Actor, Event, GroupResource, Key, Selection
from machinery.clock import SystemClock
from machinery.errors import AlreadyExistsError, ExpiredError, ForbiddenError
from machinery.identity import ClusterName

LEASES = GroupResource("coordination.k8s.io", "leases")
ADMIN = Actor("admin")
EDGE1 = Key("edge1", "managed-cluster-lease")


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
    before = await leases.revision()
    written = await leases.update(
        LEASES, EDGE1, lambda old: {**old, "spec": {**old["spec"], "renewTime": "2020-01-01T00:00:00.000000Z"}}, ADMIN
    )
    stored = await store.read(lambda tx: tx.heartbeats.of(ClusterName("edge1")))
    assert stored is not None
    assert stored.at is not None
    assert round(stored.at.timestamp() * 1_000_000) == written.revision
    assert await leases.revision() == before, "heartbeats are not news"


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


async def test_a_watch_cannot_resume_from_a_beat(leases: LeaseStorage) -> None:
    revision = (await leases.get(LEASES, EDGE1)).revision
    with pytest.raises(ExpiredError):
        async with leases.watch(LEASES, Selection(), after=revision):
            pytest.fail("the watch was opened")
