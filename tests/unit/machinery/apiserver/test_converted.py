"""One stored Event, in both of its spellings."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from machinery.apiserver.converted import ConvertedStorage
from machinery.apiserver.kinds.events import EVENT, EVENTS_V1, SPELLING
from machinery.apiserver.memory import MemoryStorage
from machinery.apiserver.storage import Actor, Event, Key, Selection
from machinery.errors import AlreadyExistsError, NotFoundError
from machinery.selectors import parse_field_selector

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
    return ConvertedStorage(core, SPELLING)


async def read(storage: MemoryStorage | ConvertedStorage) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((await storage.get(EVENT.key, KEY)).document)
    return document


async def test_what_is_written_in_one_is_read_in_the_other(core: MemoryStorage, events: ConvertedStorage) -> None:
    await events.create(EVENTS_V1.key, KEY, NEW, ADMIN)
    stored, shown = await read(core), await read(events)
    assert (stored["apiVersion"], stored["message"], stored["count"]) == ("v1", "it came", 3)
    assert (stored["involvedObject"], stored["reportingComponent"]) == (NEW["regarding"], "spoke")
    assert {**shown, "metadata": NEW["metadata"]} == NEW, "nothing is lost on the way there and back"


async def test_an_update_in_one_spelling_keeps_the_rest(core: MemoryStorage, events: ConvertedStorage) -> None:
    await events.create(EVENTS_V1.key, KEY, NEW, ADMIN)
    await events.update(EVENTS_V1.key, KEY, lambda old: {**old, "note": "it stayed"}, ADMIN)
    stored = await read(core)
    assert (stored["message"], stored["count"], "note" in stored) == ("it stayed", 3, False)


async def test_an_update_that_changes_nothing_writes_nothing(events: ConvertedStorage) -> None:
    revision = (await events.create(EVENTS_V1.key, KEY, NEW, ADMIN)).revision
    assert (await events.update(EVENTS_V1.key, KEY, dict, ADMIN)).revision == revision


async def test_selectors_name_the_fields_of_their_spelling(core: MemoryStorage, events: ConvertedStorage) -> None:
    await events.create(EVENTS_V1.key, KEY, NEW, ADMIN)
    for storage, selector in ((core, "involvedObject.name=east"), (events, "regarding.name=east,reportingController=spoke")):
        found = await storage.list(EVENT.key, Selection(fields=parse_field_selector(selector)))
        assert [stored.key for stored in found.items] == [KEY]
    assert not (await events.list(EVENTS_V1.key, Selection(fields=parse_field_selector("regarding.name=west")))).items


async def told(events: AsyncIterator[Event | int], count: int) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    async with asyncio.timeout(5):
        while len(seen) < count:
            event = await anext(events)
            if not isinstance(event, int):
                seen.append((event.type.value, json.loads(event.stored.document)["apiVersion"]))
    return seen


async def test_each_watcher_sees_one_event_per_write_in_its_own_spelling(core: MemoryStorage, events: ConvertedStorage) -> None:
    start, everything = await core.revision(), Selection()
    async with (
        core.watch(EVENT.key, everything, after=start) as old,
        events.watch(EVENTS_V1.key, everything, after=start) as new,
    ):
        await events.create(EVENTS_V1.key, KEY, NEW, ADMIN)
        await core.update(EVENT.key, KEY, lambda stored: {**stored, "count": 4}, ADMIN)
        await events.update(EVENTS_V1.key, KEY, lambda _: None, ADMIN)
        kinds = ["ADDED", "MODIFIED", "DELETED"]
        assert await told(old, 3) == [(kind, "v1") for kind in kinds]
        assert await told(new, 3) == [(kind, "events.k8s.io/v1") for kind in kinds]


async def test_errors_do_not_tell_how_it_is_stored(events: ConvertedStorage) -> None:
    with pytest.raises(NotFoundError) as missing:
        await events.get(EVENTS_V1.key, KEY)
    await events.create(EVENTS_V1.key, KEY, NEW, ADMIN)
    with pytest.raises(AlreadyExistsError) as taken:
        await events.create(EVENTS_V1.key, KEY, NEW, ADMIN)
    assert (missing.value.subject, taken.value.subject) == (None, None)
