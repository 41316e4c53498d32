"""A source of too many events is slowed down, and the watchers of other kinds are not bothered."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from hub.apiserver.events import PER_NAMESPACE, EventStorage, Rate
from hub.apiserver.feed import ChangeFeed
from hub.apiserver.storage import ServiceStorage
from hub.domain.change import EVENTS, Query
from hub.store import SqlStore
from machinery.apiserver.kinds.events import EVENT
from machinery.apiserver.storage import Actor, Event, GroupResource, Key, Selection
from machinery.clock import ManualClock
from machinery.errors import TooManyRequestsError
from machinery.product import GROUP_SUFFIX

AGENT = Actor("agent")
CLUSTERS = GroupResource(f"cluster.{GROUP_SUFFIX}", "managedclusters")


def event(number: int, namespace: str = "default") -> tuple[Key, dict[str, Any]]:
    key = Key(namespace, f"e{number}")
    metadata = {"name": key.name, "namespace": namespace}
    return key, {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": {"name": "x"}}


async def test_a_namespace_that_sends_too_many_events_is_told_when_to_come_again(store: SqlStore, feed: ChangeFeed) -> None:
    clock, slow = ManualClock(), Rate(per_second=1, burst=3)
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


async def test_all_namespaces_together_are_bounded_too(store: SqlStore, feed: ChangeFeed) -> None:
    events = EventStorage(store, feed, GROUP_SUFFIX, ManualClock(), together=Rate(per_second=1, burst=1))
    await events.create(EVENT.key, *event(1), AGENT)
    with pytest.raises(TooManyRequestsError):
        await events.create(EVENT.key, *event(2, "kube-system"), AGENT)


async def test_a_storm_of_events_is_not_told_to_the_watchers_of_clusters(
    store: SqlStore, feed: ChangeFeed, storage: ServiceStorage
) -> None:
    events = EventStorage(store, feed, GROUP_SUFFIX, ManualClock())
    async with storage.watch(CLUSTERS, Selection(), after=await storage.revision()) as told:
        for number in range(2):  # fewer than a watcher's queue holds here, so that one that is told of them shows it
            await events.create(EVENT.key, *event(number), AGENT)
        cluster = {"metadata": {"name": "edge1"}, "spec": {"hubAcceptsClient": False}}
        await storage.create(CLUSTERS, Key("", "edge1"), cluster, AGENT)
        async with asyncio.timeout(5):
            seen = [each async for each in _until_an_event(told)]
    assert [each.stored.key.name for each in seen if isinstance(each, Event)] == ["edge1"]


async def _until_an_event(told: Any) -> Any:
    async for each in told:
        yield each
        if isinstance(each, Event):
            return


async def test_changes_of_events_count_as_their_creation_does(store: SqlStore, feed: ChangeFeed) -> None:
    clock = ManualClock()
    events = EventStorage(store, feed, GROUP_SUFFIX, clock)
    key, document = event(1)
    await events.create(EVENT.key, key, document, AGENT)

    async def again(count: int, *, dry_run: bool = False) -> None:
        await events.update(EVENT.key, key, lambda old: {**old, "count": count}, AGENT, dry_run=dry_run)

    for count in range(1, PER_NAMESPACE.burst):
        await again(count)
    await again(PER_NAMESPACE.burst, dry_run=True)
    with pytest.raises(TooManyRequestsError, match='too many events in namespace "default"'):
        await again(PER_NAMESPACE.burst)
    await events.update(EVENT.key, key, lambda old: old, AGENT)
    clock.advance(timedelta(seconds=1))
    await again(PER_NAMESPACE.burst)
    clock.advance(-timedelta(seconds=1))
    await events.update(EVENT.key, key, lambda _old: None, AGENT)
