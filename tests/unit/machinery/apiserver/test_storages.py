"""Changes of large objects, and both API versions of Event over one storage."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from machinery.apiserver.kinds.events import CONVERSION, EVENT, EVENTS_V1
from machinery.apiserver.storage import Actor, GroupResource
from machinery.apiserver.storages.conversion import ConvertedStorage
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.apiserver.write.changes import ATTEMPTS, PLACES, SMALL, Changing
from machinery.errors import AlreadyExistsError, BadRequestError, NotFoundError, TooManyRequestsError
from machinery.meta.objects import Document, Key, Query, WatchEvent
from machinery.meta.selectors import parse_field_selector
from machinery.runtime.clock import ManualClock
from tests.checks import awaited_refusal, check_refusal_of, present

THINGS, ONE, BOB = GroupResource("example.com", "things"), Key("", "one"), Actor("bob")


class LargeObject:
    """One object in a storage, and the threads on which changes of it were worked out."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.changing = Changing(ManualClock())
        self.threads: list[str] = []

    @classmethod
    async def of(cls, text: str) -> "LargeObject":
        made = cls()
        await made.storage.create(THINGS, ONE, {"metadata": {"name": "one"}, "text": text, "seen": 0}, BOB)
        return made

    def seen(self, old: Document) -> Document:
        self.threads.append(threading.current_thread().name)
        return {**old, "seen": old["seen"] + 1}

    async def change(self, change: Callable[[Document], Document | None], size: int = 0) -> None:
        await self.changing.change(self.storage, THINGS, ONE, change, BOB, size=size, dry_run=False)

    async def touch(self) -> None:
        await self.storage.update(THINGS, ONE, lambda old: {**old, "seen": old["seen"] + 10}, BOB)

    async def count(self) -> Any:
        return self.storage._entry(THINGS, ONE).document["seen"]


async def test_change_is_retried_given_up_in_the_end_and_refused_when_nested_too_deeply() -> None:
    large, loop = await LargeObject.of("x" * SMALL), asyncio.get_running_loop()
    first = True

    def slow(old: Document) -> Document:
        nonlocal first
        if first:
            first = False
            asyncio.run_coroutine_threadsafe(large.touch(), loop).result(5)
        return large.seen(old)

    await large.change(slow)
    assert (len(large.threads), await large.count()) == (2, 11)

    large = await LargeObject.of("x" * SMALL)

    def never_at_rest(old: Document) -> Document:
        asyncio.run_coroutine_threadsafe(large.touch(), loop).result(5)
        return large.seen(old)

    await check_refusal_of(TooManyRequestsError, large.change(never_at_rest), match="changes too often")
    assert await large.count() == 10 * ATTEMPTS

    before = await large.storage.revision()
    await large.change(lambda old: old)
    assert await large.storage.revision() == before
    large = await LargeObject.of("short")

    def bottomless(old: Document) -> Document:
        return bottomless(old)

    for size in (0, SMALL):
        await check_refusal_of(BadRequestError, large.change(bottomless, size), match="nested too deeply")


async def test_large_changes_run_in_worker_threads_with_places_for_each_identity() -> None:
    large = await LargeObject.of("short")
    await large.change(large.seen)
    assert large.threads == ["MainThread"]
    assert await large.count() == 1

    for text, size in (("short", SMALL), ("x" * SMALL, 0)):
        large = await LargeObject.of(text)
        await large.change(large.seen, size)
        assert [name.partition("_")[0] for name in large.threads] == ["large-changes"], (text, size)
        assert await large.count() == 1, (text, size)

    large = LargeObject()

    def name() -> str:
        return threading.current_thread().name.partition("_")[0]

    assert await large.changing.made(name, BOB, size=SMALL) == "MainThread"
    assert await large.changing.made(name, BOB, size=SMALL + 1) == "large-changes"

    large = await LargeObject.of("x" * SMALL)
    go_on, began = threading.Event(), threading.Semaphore(0)

    def stuck(old: Document) -> Document:
        began.release()
        go_on.wait(5)
        return old

    waiting = [asyncio.create_task(large.change(stuck)) for _ in range(PLACES.seats)]
    await asyncio.sleep(0)
    places = large.changing._places.snapshot()
    go_on.set()
    await asyncio.gather(*waiting)
    assert (places["taken"], places["waiting"]) == (PLACES.seats // 2, PLACES.seats // 2)


ADMIN = Actor("admin")
KEY = Key("east", "e1")
NEW: dict[str, Any] = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"name": "e1", "namespace": "east"},
    "regarding": {"kind": "ManagedCluster", "name": "east"},
    "note": "it came",
    "reason": "Joined",
    "reportingController": "spoke",
    "deprecatedCount": 3,
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "series": {"count": 2},
}


@pytest.fixture
def core() -> MemoryStorage:
    return MemoryStorage({EVENT.key: EVENT.selectable} if EVENT.selectable else {})


@pytest.fixture
def events(core: MemoryStorage) -> ConvertedStorage:
    return ConvertedStorage(core, CONVERSION)


async def read(storage: MemoryStorage | ConvertedStorage) -> Document:
    return (await storage.get(EVENT.key, KEY)).document


async def test_event_is_converted_both_ways_without_loss(core: MemoryStorage, events: ConvertedStorage) -> None:
    missing = present(await awaited_refusal(NotFoundError, events.get(EVENTS_V1.key, KEY)))
    await events.create(EVENTS_V1.key, KEY, NEW, ADMIN)
    stored, shown = await read(core), await read(events)
    assert (stored["apiVersion"], stored["message"], stored["count"]) == ("v1", "it came", 3)
    assert (stored["involvedObject"], stored["reportingComponent"]) == (NEW["regarding"], "spoke")
    assert {**shown, "metadata": NEW["metadata"]} == NEW, "nothing is lost on the way there and back"

    await events.update(EVENTS_V1.key, KEY, lambda old: {**old, "note": "it stayed"}, ADMIN)
    stored = await read(core)
    assert (stored["message"], stored["count"], "note" in stored) == ("it stayed", 3, False)

    revision = await core.revision()
    assert (await events.update(EVENTS_V1.key, KEY, dict, ADMIN)).revision == revision
    taken = present(await awaited_refusal(AlreadyExistsError, events.create(EVENTS_V1.key, KEY, NEW, ADMIN)))
    assert (missing.subject, taken.subject) == (None, None)


async def test_selectors_and_watches_use_the_fields_of_their_api_version(core: MemoryStorage, events: ConvertedStorage) -> None:
    await events.create(EVENTS_V1.key, KEY, NEW, ADMIN)
    for storage, selector in ((core, "involvedObject.name=east"), (events, "regarding.name=east,reportingController=spoke")):
        found = await storage.list(EVENT.key, Query(fields=parse_field_selector(selector)))
        assert [stored.key for stored in found.items] == [KEY]
    assert not (await events.list(EVENTS_V1.key, Query(fields=parse_field_selector("regarding.name=west")))).items

    await events.update(EVENTS_V1.key, KEY, lambda _: None, ADMIN)
    start, everything = await core.revision(), Query()
    async with (
        core.watch(EVENT.key, everything, after=start) as old,
        events.watch(EVENTS_V1.key, everything, after=start) as new,
    ):
        await events.create(EVENTS_V1.key, KEY, NEW, ADMIN)
        await core.update(EVENT.key, KEY, lambda stored: {**stored, "count": 4}, ADMIN)
        await events.update(EVENTS_V1.key, KEY, lambda _: None, ADMIN)
        kinds = ["ADDED", "MODIFIED", "DELETED"]
        assert await watched(old, 3) == [(kind, "v1") for kind in kinds]
        assert await watched(new, 3) == [(kind, "events.k8s.io/v1") for kind in kinds]


async def watched(events: AsyncIterator[WatchEvent | int], count: int) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    while len(seen) < count:
        event = await anext(events)
        if not isinstance(event, int):
            seen.append((event.type.value, event.stored.document["apiVersion"]))
    return seen
