"""What every Storage behind the generic API server promises: in memory, and over the hub's services."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hub.https_door.storage.feed import ChangeFeed
from hub.https_door.storage.storage import ServiceStorage
from machinery.apiserver.storage import Actor, GroupResource, Storage
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.errors import AlreadyExistsError, ConflictError, NotFoundError
from machinery.meta.objects import Document, Key, Query, StoredObject, WatchEvent
from machinery.meta.selectors import parse_field_selector, parse_label_selector
from machinery.product import GROUP_SUFFIX
from tests.checks import check_refusal_of
from tests.fakes.databases import sqlite_database

CLUSTERS = GroupResource(f"cluster.{GROUP_SUFFIX}", "managedclusters")
LEASES = GroupResource("coordination.k8s.io", "leases")
ADMIN = Actor("admin", ("system:masters",))
GOLD = Query(labels=parse_label_selector("tier=gold").requirements)
QUIET = timedelta(milliseconds=50)
EAST = Key("", "east")


@pytest.fixture(params=["memory", "services"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    if request.param == "memory":
        yield MemoryStorage(bookmark_every=QUIET)
        return
    async with sqlite_database(tmp_path).opened(None) as store:
        feed = ChangeFeed(store)
        following = asyncio.create_task(feed.run(), name="feed")
        yield ServiceStorage(store, feed, GROUP_SUFFIX, quiet=QUIET)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


def cluster(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": f"cluster.{GROUP_SUFFIX}/v1",
        "kind": "ManagedCluster",
        "metadata": {"name": name, "labels": labels},
        "spec": {"hubAcceptsClient": False, "leaseDurationSeconds": 60},
    }


async def create(storage: Storage, name: str, **labels: str) -> StoredObject:
    return await storage.create(CLUSTERS, Key("", name), cluster(name, **labels), ADMIN)


async def relabel(storage: Storage, name: str, **labels: str) -> StoredObject:
    def change(old: Document) -> Document:
        return {**old, "metadata": {**old["metadata"], "labels": labels}}

    return await storage.update(CLUSTERS, Key("", name), change, ADMIN)


async def remove(storage: Storage, name: str) -> StoredObject:
    return await storage.update(CLUSTERS, Key("", name), lambda _old: None, ADMIN)


def metadata(stored: StoredObject) -> Mapping[str, Any]:
    found: Mapping[str, Any] = stored.document["metadata"]
    return found


def names(items: tuple[StoredObject, ...]) -> list[str]:
    return [item.key.name for item in items]


async def take(events: AsyncIterator[WatchEvent | int], count: int) -> list[tuple[str, str]]:
    """Type and name of the next `count` events; bookmarks are left out."""
    taken: list[tuple[str, str]] = []
    while len(taken) < count:
        event = await anext(events)
        if isinstance(event, WatchEvent):
            taken.append((event.type.value, event.stored.key.name))
    return taken


async def test_objects_are_updated_and_removed_with_their_identity(storage: Storage) -> None:
    def lie(old: Document) -> Document:
        return {**old, "metadata": {**old["metadata"], "uid": "mine", "resourceVersion": "1", "labels": {"a": "b"}}}

    def refuse(_old: Document) -> Document:
        raise ConflictError("not now")

    await check_refusal_of(NotFoundError, storage.get(CLUSTERS, EAST))
    await check_refusal_of(NotFoundError, relabel(storage, "east", tier="gold"))
    assert metadata(await storage.create(CLUSTERS, EAST, cluster("east"), ADMIN, dry_run=True))["name"] == "east"
    before = await create(storage, "east")
    assert metadata(before)["uid"]
    assert metadata(before)["creationTimestamp"].endswith("Z")
    assert (metadata(before)["resourceVersion"], await storage.get(CLUSTERS, EAST)) == (str(before.revision), before)
    await check_refusal_of(AlreadyExistsError, create(storage, "east"))
    after = await relabel(storage, "east", tier="gold")
    assert after.revision > before.revision
    assert metadata(after)["labels"] == {"tier": "gold"}
    assert metadata(after)["creationTimestamp"] == metadata(before)["creationTimestamp"]
    corrected = await storage.update(CLUSTERS, EAST, lie, ADMIN)
    assert metadata(corrected)["uid"] == metadata(after)["uid"] == metadata(before)["uid"]
    assert metadata(corrected)["resourceVersion"] == str(corrected.revision)
    assert await storage.update(CLUSTERS, EAST, dict, ADMIN) == corrected
    assert await storage.revision() == corrected.revision, "a change that changes nothing writes nothing"
    await check_refusal_of(ConflictError, storage.update(CLUSTERS, EAST, refuse, ADMIN))
    await storage.update(CLUSTERS, EAST, lambda _old: None, ADMIN, dry_run=True)
    assert await storage.get(CLUSTERS, EAST) == corrected
    gone = await remove(storage, "east")
    assert gone.revision > corrected.revision
    assert metadata(gone)["uid"] == metadata(before)["uid"]
    await check_refusal_of(NotFoundError, storage.get(CLUSTERS, EAST))


async def test_concurrent_changes_lose_no_update(storage: Storage) -> None:
    await create(storage, "east")

    def count(old: Document) -> Document:
        counted = int(old["metadata"]["labels"].get("n", "0")) + 1
        return {**old, "metadata": {**old["metadata"], "labels": {"n": str(counted)}}}

    await asyncio.gather(*(storage.update(CLUSTERS, EAST, count, ADMIN) for _ in range(20)))
    assert metadata(await storage.get(CLUSTERS, EAST))["labels"] == {"n": "20"}


async def test_a_list_is_ordered_selected_and_paged_and_a_later_page_shows_the_moment_of_the_first(storage: Storage) -> None:
    for name in ("c", "a", "d", "b"):
        await create(storage, name, tier="gold" if name != "d" else "iron")
    whole = await storage.list(CLUSTERS, Query())
    assert (names(whole.items), whole.revision, whole.after) == (["a", "b", "c", "d"], await storage.revision(), None)
    assert names((await storage.list(CLUSTERS, GOLD)).items) == ["a", "b", "c"]
    assert names((await storage.list(CLUSTERS, Query(fields=parse_field_selector("metadata.name=b")))).items) == ["b"]
    first = await storage.list(CLUSTERS, Query(limit=3))
    assert (names(first.items), first.after) == (["a", "b", "c"], Key("", "c"))
    rest = await storage.list(CLUSTERS, Query(limit=3, after=first.after))
    assert (names(rest.items), rest.after) == (["d"], None)
    first = await storage.list(CLUSTERS, replace(GOLD, limit=1))
    await remove(storage, "b")
    await relabel(storage, "c", tier="iron")
    await create(storage, "aa", tier="gold")
    rest = await storage.list(CLUSTERS, replace(GOLD, limit=5, after=first.after, at=first.revision))
    assert (names(rest.items), rest.revision) == (["b", "c"], first.revision)


async def test_a_watch_sends_every_later_change_and_objects_that_enter_or_leave_its_selection(storage: Storage) -> None:
    start = (await create(storage, "a", tier="iron")).revision
    async with storage.watch(CLUSTERS, GOLD, after=start) as events, storage.watch(CLUSTERS, Query(), after=start) as every:
        await relabel(storage, "a", tier="gold")
        await relabel(storage, "a", tier="gold", more="yes")
        left = await relabel(storage, "a", tier="iron")
        await relabel(storage, "a", tier="iron", more="yes")
        await create(storage, "b", tier="gold")
        await remove(storage, "b")
        assert await take(events, 2) == [("ADDED", "a"), ("MODIFIED", "a")]
        while not isinstance(event := await anext(events), WatchEvent):
            pass
        assert (event.type.value, event.stored.revision) == ("DELETED", left.revision)
        assert metadata(event.stored)["resourceVersion"] == str(left.revision)
        assert await take(events, 2) == [("ADDED", "b"), ("DELETED", "b")]
        changed = [("MODIFIED", "a")] * 4
        assert await take(every, 6) == [*changed, ("ADDED", "b"), ("DELETED", "b")]


async def test_a_watch_without_changes_of_its_own_tells_how_far_it_is(storage: Storage) -> None:
    start = (await create(storage, "a", tier="iron")).revision
    async with storage.watch(CLUSTERS, GOLD, after=start) as events, storage.watch(LEASES, Query(), after=start) as others:
        newest = (await create(storage, "b", tier="iron")).revision
        for quiet in (events, others):
            while (bookmark := await anext(quiet)) != newest:
                assert not isinstance(bookmark, WatchEvent)


async def test_waiting_ends_when_the_revision_is_visible(storage: Storage) -> None:
    waiting = asyncio.ensure_future(storage.wait_for((await create(storage, "a")).revision + 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    await create(storage, "b")
    await waiting
