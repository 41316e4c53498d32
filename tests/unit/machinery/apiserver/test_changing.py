"""Changes of large objects are worked out beside the storage's transaction, and count for what they were made of alone."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from machinery.apiserver.changing import PLACES, SMALL, TRIES, Changing
from machinery.apiserver.memory import MemoryStorage
from machinery.apiserver.storage import Actor, Document, GroupResource, Key
from machinery.clock import ManualClock
from machinery.errors import BadRequestError, TooManyRequestsError

THINGS, PLACE, ANN = GroupResource("", "things"), Key("", "a"), Actor("ann")


class Stage:
    """One object in a storage, and the threads on which changes of it were worked out."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.changing = Changing(ManualClock())
        self.threads: list[str] = []

    async def put(self, text: str) -> None:
        await self.storage.create(THINGS, PLACE, {"metadata": {"name": "a"}, "text": text, "seen": 0}, ANN)

    def seen(self, old: Document) -> Document:
        self.threads.append(threading.current_thread().name)
        return {**old, "seen": old["seen"] + 1}

    async def change(self, change: Callable[[Document], Document | None], size: int = 0) -> None:
        await self.changing.change(self.storage, THINGS, PLACE, change, ANN, size=size, dry_run=False)

    async def touch(self) -> None:
        await self.storage.update(THINGS, PLACE, lambda old: {**old, "seen": old["seen"] + 10}, ANN)

    async def count(self) -> Any:
        return self.storage._entry(THINGS, PLACE).document["seen"]


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_a_small_change_is_made_where_the_object_is(stage: Stage) -> None:
    await stage.put("short")
    await stage.change(stage.seen)
    assert stage.threads == ["MainThread"]
    assert await stage.count() == 1


@pytest.mark.parametrize(("text", "size"), [("short", SMALL), ("x" * SMALL, 0)], ids=["body", "object"])
async def test_a_large_one_is_made_beside_it(stage: Stage, text: str, size: int) -> None:
    await stage.put(text)
    await stage.change(stage.seen, size)
    assert [name.partition("_")[0] for name in stage.threads] == ["large-changes"]
    assert await stage.count() == 1


async def test_what_was_changed_meanwhile_is_not_lost(stage: Stage) -> None:
    await stage.put("x" * SMALL)
    loop = asyncio.get_running_loop()
    first = True

    def slow(old: Document) -> Document:
        nonlocal first
        if first:
            first = False
            asyncio.run_coroutine_threadsafe(stage.touch(), loop).result(5)
        return stage.seen(old)

    await stage.change(slow)
    assert len(stage.threads) == 2
    assert await stage.count() == 11


async def test_an_object_that_never_rests_is_given_up(stage: Stage) -> None:
    await stage.put("x" * SMALL)
    loop = asyncio.get_running_loop()

    def slow(old: Document) -> Document:
        asyncio.run_coroutine_threadsafe(stage.touch(), loop).result(5)
        return stage.seen(old)

    with pytest.raises(TooManyRequestsError, match="changes too often"):
        await stage.change(slow)
    assert await stage.count() == 10 * TRIES


async def test_a_change_that_leaves_the_object_writes_nothing(stage: Stage) -> None:
    await stage.put("x" * SMALL)
    before = await stage.storage.revision()
    await stage.change(lambda old: old)
    assert await stage.storage.revision() == before


async def test_what_nests_too_deeply_is_a_bad_request(stage: Stage) -> None:
    def bottomless(old: Document) -> Document:
        return bottomless(old)

    await stage.put("short")
    for size in (0, SMALL):
        with pytest.raises(BadRequestError, match="nested too deeply"):
            await stage.change(bottomless, size)


async def test_one_identity_has_half_of_the_places(stage: Stage) -> None:
    await stage.put("x" * SMALL)
    go_on, began = threading.Event(), threading.Semaphore(0)

    def stuck(old: Document) -> Document:
        began.release()
        go_on.wait(5)
        return old

    waiting = [asyncio.create_task(stage.change(stuck)) for _ in range(PLACES.seats)]
    await asyncio.sleep(0)
    places = stage.changing.snapshot()
    go_on.set()
    await asyncio.gather(*waiting)
    assert (places["taken"], places["waiting"]) == (PLACES.seats // 2, PLACES.seats // 2)


async def test_an_object_is_made_beside_the_loop_when_its_body_is_large(stage: Stage) -> None:
    def name() -> str:
        return threading.current_thread().name.partition("_")[0]

    assert await stage.changing.made(name, ANN, size=SMALL) == "MainThread"
    assert await stage.changing.made(name, ANN, size=SMALL + 1) == "large-changes"
