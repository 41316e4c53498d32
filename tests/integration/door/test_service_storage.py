"""The door's storage over a real database: one write path, and watches that lose and double nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from hub.apiserver.storage import ServiceStorage
from hub.domain.asking import where_of
from hub.domain.change import MANAGED_CLUSTERS
from hub.domain.change import Key as StoreKey
from hub.store import SqlStore
from machinery.apiserver.storage import Actor, Event, GroupResource, Key, Selection
from machinery.errors import AlreadyExistsError, ExpiredError, InvalidError, NotFoundError
from machinery.product import GROUP_SUFFIX
from machinery.selectors import FieldSelector, LabelSelector, Operator, Requirement

CLUSTERS = GroupResource(f"cluster.{GROUP_SUFFIX}", "managedclusters")
ADMIN = Actor("admin", ("system:masters",))
EVERYTHING = Selection()
GOLD = Selection(labels=LabelSelector((Requirement("tier", Operator.EQUALS, ("gold",)),)))


def cluster(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"hubAcceptsClient": False}}


def labelled(document: Mapping[str, Any], **labels: str) -> dict[str, Any]:
    return {**document, "metadata": {**document["metadata"], "labels": labels}}


async def create(storage: ServiceStorage, name: str, **labels: str) -> int:
    return (await storage.create(CLUSTERS, Key("", name), cluster(name, **labels), ADMIN)).revision


async def take(events: AsyncIterator[Event | int], count: int) -> list[tuple[str, str]]:
    """The next `count` events, bookmarks left out."""
    told: list[tuple[str, str]] = []
    async with asyncio.timeout(5):
        while len(told) < count:
            event = await anext(events)
            if not isinstance(event, int):
                told.append((event.type.value, event.stored.key.name))
    return told


async def test_what_is_created_went_through_the_service(storage: ServiceStorage, store: SqlStore) -> None:
    stored = await storage.create(CLUSTERS, Key("", "east"), cluster("east"), ADMIN)
    document = json.loads(stored.document)
    assert document["metadata"]["resourceVersion"] == str(stored.revision)
    assert document["metadata"]["uid"]
    assert document["spec"]["leaseDurationSeconds"] == 60, "the service's default"
    found = await store.read(lambda tx: tx.objects.get(MANAGED_CLUSTERS, StoreKey("", "east")))
    assert found is not None
    assert found.encoded == stored.document, "the stored bytes are served"


async def test_a_name_that_breaks_the_services_rules_is_refused(storage: ServiceStorage) -> None:
    with pytest.raises(InvalidError, match=r"a\.b"):
        await create(storage, "a.b")


async def test_a_second_object_of_the_name_is_refused_in_kubernetes_words(storage: ServiceStorage) -> None:
    await create(storage, "east")
    with pytest.raises(AlreadyExistsError, match=f'managedclusters.cluster.{GROUP_SUFFIX} "east" already exists'):
        await create(storage, "east")


async def test_a_missing_object_is_named_in_kubernetes_words(storage: ServiceStorage) -> None:
    with pytest.raises(NotFoundError, match=f'managedclusters.cluster.{GROUP_SUFFIX} "east" not found'):
        await storage.get(CLUSTERS, Key("", "east"))


async def test_an_update_that_changes_nothing_writes_nothing(storage: ServiceStorage) -> None:
    revision = await create(storage, "east")
    assert (await storage.update(CLUSTERS, Key("", "east"), lambda old: old, ADMIN)).revision == revision


async def test_a_dry_run_shows_the_result_and_writes_nothing(storage: ServiceStorage) -> None:
    shown = await storage.create(CLUSTERS, Key("", "east"), cluster("east"), ADMIN, dry_run=True)
    assert json.loads(shown.document)["spec"]["leaseDurationSeconds"] == 60
    with pytest.raises(NotFoundError):
        await storage.get(CLUSTERS, Key("", "east"))
    revision = await create(storage, "east")
    shown = await storage.update(CLUSTERS, Key("", "east"), lambda old: labelled(old, tier="gold"), ADMIN, dry_run=True)
    assert json.loads(shown.document)["metadata"]["labels"] == {"tier": "gold"}
    assert shown.revision == revision
    await storage.update(CLUSTERS, Key("", "east"), lambda _: None, ADMIN, dry_run=True)
    assert (await storage.get(CLUSTERS, Key("", "east"))).revision == revision


async def test_concurrent_updates_lose_none(storage: ServiceStorage) -> None:
    await create(storage, "east", count="0")

    def add_one(old: Mapping[str, Any]) -> dict[str, Any]:
        return labelled(old, count=str(int(old["metadata"]["labels"]["count"]) + 1))

    await asyncio.gather(*(storage.update(CLUSTERS, Key("", "east"), add_one, ADMIN) for _ in range(20)))
    stored = await storage.get(CLUSTERS, Key("", "east"))
    assert json.loads(stored.document)["metadata"]["labels"]["count"] == "20"


async def test_pages_are_of_one_revision_though_objects_come_meanwhile(storage: ServiceStorage) -> None:
    for name in ("a", "b", "c"):
        await create(storage, name)
    first = await storage.list(CLUSTERS, EVERYTHING, limit=2)
    await create(storage, "bb")
    second = await storage.list(CLUSTERS, EVERYTHING, limit=2, after=first.after, at=first.revision)
    assert [stored.key.name for stored in (*first.items, *second.items)] == ["a", "b", "c"]
    assert (first.remaining, second.after) == (1, None)


async def test_a_watch_resumes_where_it_ended(storage: ServiceStorage) -> None:
    first = await create(storage, "a")
    await create(storage, "b")
    async with storage.watch(CLUSTERS, EVERYTHING, after=first) as events:
        assert await take(events, 1) == [("ADDED", "b")]
        await create(storage, "c")
        await storage.update(CLUSTERS, Key("", "a"), lambda _: None, ADMIN)
        assert await take(events, 2) == [("ADDED", "c"), ("DELETED", "a")]


async def test_entering_and_leaving_a_selection_is_added_and_deleted(storage: ServiceStorage) -> None:
    revision = await create(storage, "a")
    async with storage.watch(CLUSTERS, GOLD, after=revision) as events:
        for number, tier in enumerate(("gold", "gold", "iron", "iron")):
            await storage.update(CLUSTERS, Key("", "a"), partial(labelled, tier=tier, n=str(number)), ADMIN)
        await create(storage, "b", tier="gold")
        await storage.update(CLUSTERS, Key("", "a"), lambda _: None, ADMIN)
        await storage.update(CLUSTERS, Key("", "b"), lambda _: None, ADMIN)
        told = await take(events, 5)
    assert told == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b"), ("DELETED", "b")]


async def test_entering_and_leaving_a_condition_is_added_and_deleted(storage: ServiceStorage) -> None:
    """What an object was before is known by its labels and fields alone."""
    revision = await create(storage, "a")
    where = where_of('labels.tier == "gold" && !accepted && available != "True"', datetime.now(UTC), watched=True)
    unheard = where_of('!has(available) && labels.tier in ["gold"]', datetime.now(UTC), watched=True)
    async with (
        storage.watch(CLUSTERS, Selection(where=where), after=revision) as never,
        storage.watch(CLUSTERS, Selection(where=unheard), after=revision) as events,
    ):
        for number, tier in enumerate(("gold", "gold", "iron", "iron")):
            await storage.update(CLUSTERS, Key("", "a"), partial(labelled, tier=tier, n=str(number)), ADMIN)
        await create(storage, "b", tier="gold")
        await storage.update(CLUSTERS, Key("", "b"), lambda _: None, ADMIN)
        assert await take(events, 5) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b"), ("DELETED", "b")]
        told = await anext(never)
        while not isinstance(told, int):
            pytest.fail(f"what is unknown was told: {told}")


async def test_a_watch_by_name_sees_only_that_object(storage: ServiceStorage) -> None:
    revision = await create(storage, "a")
    only = Selection(fields=FieldSelector((Requirement("metadata.name", Operator.EQUALS, ("c",)),)))
    async with storage.watch(CLUSTERS, only, after=revision) as events:
        await create(storage, "b")
        await create(storage, "c")
        assert await take(events, 1) == [("ADDED", "c")]


async def test_a_watcher_that_falls_behind_reads_on_from_the_log(storage: ServiceStorage) -> None:
    revision = await create(storage, "first")
    names = [f"c{index:02}" for index in range(30)]
    async with storage.watch(CLUSTERS, EVERYTHING, after=revision) as events:
        for name in names:
            await create(storage, name)
        await create(storage, "last")
        assert await take(events, 31) == [("ADDED", name) for name in (*names, "last")]


async def test_a_compacted_place_is_refused_at_the_door(storage: ServiceStorage, store: SqlStore) -> None:
    for name in ("a", "b", "c"):
        await create(storage, name)
    await store.run(lambda tx: tx.changes.compact(tx.now.replace(year=tx.now.year + 1)))
    with pytest.raises(ExpiredError):
        async with storage.watch(CLUSTERS, EVERYTHING, after=0):
            pytest.fail("the watch was opened")


async def test_many_watchers_see_every_change_once_and_in_order(storage: ServiceStorage) -> None:
    start = await storage.revision()
    names = [f"c{index:02}" for index in range(40)]

    async def see(after: int) -> list[tuple[str, str]]:
        async with storage.watch(CLUSTERS, EVERYTHING, after=after) as events:
            return await take(events, len(names))

    async with asyncio.TaskGroup() as group:
        watchers = [group.create_task(see(start)) for _ in range(8)]
        for name in names:
            await create(storage, name)
        watchers += [group.create_task(see(start)) for _ in range(4)]
    assert all(watcher.result() == [("ADDED", name) for name in names] for watcher in watchers)
