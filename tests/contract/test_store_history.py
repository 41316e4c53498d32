"""What every store promises about the past: how far it can be read, what goes and when, and what it says about itself."""

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from hub.api.history import RetentionPeriods, Trimmed
from hub.api.meta.change import EVENTS, LEASES, MANAGED_CLUSTERS, SECRETS, Kind
from hub.controllers.clock_guard import ClockGuard
from hub.controllers.hub.retention import Compaction
from hub.https_door.storage.past import object_history
from hub.ports import Store, Transaction, Written
from hub.store.changelog.past import ChangeLogPast
from machinery.apiserver.http.options import MAX_NUMBER
from machinery.errors import ExpiredError
from machinery.meta.objects import ChangeType, Key, Query
from machinery.meta.selectors import Operator, Requirement
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal_of, present

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
KINDS = (MANAGED_CLUSTERS, LEASES, EVENTS, SECRETS)


def put(tx: Transaction, /, name: str, kind: Kind = MANAGED_CLUSTERS, *, env: str = "", **spec: Any) -> Written:
    old = tx.objects.get(kind, Key("", name))
    uid = old.uid if old else f"{kind}-{name}-{tx.changes.newest()}"
    metadata = {"name": name, "uid": uid} | ({"labels": {"env": env}} if env else {})
    return tx.objects.put(kind, {"metadata": metadata, "spec": spec}, old, "tester")


def remove(tx: Transaction, /, name: str, kind: Kind = MANAGED_CLUSTERS) -> Written:
    return tx.objects.delete(kind, present(tx.objects.get(kind, Key("", name))), "tester")


def compact(tx: Transaction, /, age: timedelta, **limit: int) -> Trimmed:
    return tx.changes.compact(tx.now - age, **limit)


def forget(tx: Transaction, /, age: timedelta | None, **limit: int) -> Trimmed:
    return tx.changes.forget(None if age is None else tx.now - age, **limit)


def sizes(tx: Transaction, /, at: int, **query: Any) -> dict[str, int]:
    """Names and spec.size of the clusters that there were."""
    page = tx.objects.find(MANAGED_CLUSTERS, Query(at=at, past=True, **query))
    return {item.key.name: item.document["spec"]["size"] for item in page.items}


async def test_the_past_is_read_beyond_the_watch_window(store: Store, clock: ManualClock) -> None:
    for size in (1, 2, 3):
        await store.run(put, "a", size=size)
        clock.advance(HOUR)
    assert ((await store.run(compact, HOUR)).rows, (await store.read(lambda tx: tx.changes.ledger())).compacted) == (0, 2)
    await check_refusal_of(ExpiredError, store.read(lambda tx: tx.changes.since(1)))
    await check_refusal_of(ExpiredError, store.read(lambda tx: tx.objects.find(MANAGED_CLUSTERS, Query(at=1))))
    assert [await store.read(sizes, at) for at in (1, 2, 3)] == [{"a": 1}, {"a": 2}, {"a": 3}]
    first = present(await store.read(lambda tx: tx.changes.one_at(MANAGED_CLUSTERS, Key("", "a"), 1)))
    assert (first.revision, first.document["spec"]) == (1, {"size": 1})


async def test_forgetting_keeps_what_watches_resume_from_and_the_past_stands_on(store: Store, clock: ManualClock) -> None:
    await store.run(put, "kept", size=0)
    await store.run(put, "changed", size=1)
    await store.run(put, "changed", size=2)
    await store.run(put, "gone", size=0)
    await store.run(remove, "gone")
    assert (await store.run(forget, None)).rows == 0, "a watch can still resume from there"
    assert [change.revision for change in await store.read(lambda tx: tx.changes.since(0))] == [1, 2, 3, 4, 5]
    clock.advance(DAY)
    await store.run(put, "changed", size=3)
    clock.advance(2 * HOUR)
    await store.run(compact, HOUR)
    assert (await store.run(forget, DAY)).rows == 3
    ledger = await store.read(lambda tx: tx.changes.ledger())
    assert (ledger.compacted, ledger.floor, await store.read(sizes, 5)) == (6, 5, {"kept": 0, "changed": 2})
    assert await store.read(lambda tx: tx.changes.began()) == clock.now() - 2 * HOUR
    for at in (0, 4):
        await check_refusal_of(ExpiredError, store.read(sizes, at), match="history is kept from")
    await check_refusal_of(ExpiredError, store.read(lambda tx: tx.changes.one_at(MANAGED_CLUSTERS, Key("", "kept"), 4)))
    assert (await store.run(forget, DAY)).rows == 0
    for kind in KINDS:
        for size in (1, 2):
            await store.run(put, "x", kind, size=size)
    clock.advance(DAY)
    assert (await store.run(compact, HOUR)).rows == 3, "Secrets, Events and Leases go with the window of watches"
    assert await store.read(lambda tx: [len(tx.changes.past(kind, Key("", "x"), limit=9)) for kind in KINDS]) == [2, 1, 1, 1]


async def test_past_is_selected_as_it_was_and_changes_of_objects_are_listed_backwards(store: Store, clock: ManualClock) -> None:
    for name, env in (("a", "prod"), ("b", "prod"), ("a", "test"), ("c", "prod")):
        await store.run(put, name, env=env, size=1)
    prod = (Requirement("env", Operator.EQUALS, ("prod",)),)
    assert [list(await store.read(sizes, at, labels=prod)) for at in (1, 2, 3, 4)] == [["a"], ["a", "b"], ["b"], ["b", "c"]]
    assert (list(await store.read(sizes, 2, limit=1)), list(await store.read(sizes, 2, after=Key("", "a")))) == (["a"], ["b"])
    forged = Query(namespace="ours", after=Key("", ""), at=3, limit=MAX_NUMBER)
    assert not (await store.read(lambda tx: tx.objects.find(MANAGED_CLUSTERS, forged))).items
    assert not (await store.read(lambda tx: tx.objects.find(MANAGED_CLUSTERS, replace(forged, at=None)))).items
    await store.run(remove, "a")
    await store.run(put, "a", size=3)

    def listed(tx: Transaction, /, **bounds: Any) -> list[tuple[int, ChangeType]]:
        return [(change.revision, change.type) for change in tx.changes.past(MANAGED_CLUSTERS, Key("", "a"), **bounds)]

    added, modified, deleted = ChangeType.ADDED, ChangeType.MODIFIED, ChangeType.DELETED
    assert await store.read(listed, limit=9) == [(6, added), (5, deleted), (3, modified), (1, added)]
    assert await store.read(listed, limit=2, below=6) == [(5, deleted), (3, modified)]
    assert await store.read(lambda tx: tx.changes.one_at(MANAGED_CLUSTERS, Key("", "a"), 5)) is None
    assert await store.read(lambda tx: tx.changes.instant(6)) == clock.now()
    assert await store.read(lambda tx: tx.changes.instant(0)) is None


async def test_the_revision_at_an_instant_survives_a_clock_that_was_set_back(store: Store, clock: ManualClock) -> None:
    """A position counts everything that was written up to the instant, whatever order the times have."""
    began = clock.now()
    for minutes in (0, 20, 11, 15, 35):
        clock.advance(began + timedelta(minutes=minutes) - clock.now())
        await store.run(put, "a", size=minutes)
    clock.advance(began + timedelta(hours=2) - clock.now())

    async def position(minutes: float) -> int:
        return await store.read(lambda tx: tx.changes.position(began + timedelta(minutes=minutes)))

    assert [await position(minutes) for minutes in (-1, 0, 12, 30, 40)] == [0, 1, 3, 4, 5]


async def test_portions_end_where_one_piece_would_and_the_log_says_what_it_takes(store: Store, clock: ManualClock) -> None:
    """A model: whatever is written, and however the log is trimmed, the past above the bounds stays what it was."""
    chance = random.Random(7)
    was: dict[int, Mapping[tuple[Kind, str], int]] = {0: {}}
    world: dict[tuple[Kind, str], int] = {}
    for step in range(120):
        place = (chance.choice(KINDS[:3]), chance.choice("abcdef"))
        if place in world and chance.random() < 0.25:
            written = await store.run(remove, place[1], place[0])
            del world[place]
        else:
            world[place] = step
            written = await store.run(put, place[1], place[0], size=step)
        was[written.stored.revision] = dict(world)
        clock.advance(timedelta(minutes=chance.randrange(30)))
        if step % 7 == 0:
            await _trim(store, chance)
            await _check(store, was)
    ledger = await store.read(lambda tx: tx.changes.ledger())
    assert 0 < ledger.floor < ledger.compacted, "the trial has to reach what it is about"


async def _trim(store: Store, chance: random.Random) -> None:
    """As the hub does, in portions; now and then it stops half-way."""
    while (await store.run(compact, 3 * HOUR, limit=3)).more and chance.random() < 0.9:
        pass
    while await store.run(lambda tx: tx.changes.measure(limit=5)):
        pass
    while (await store.run(forget, 12 * HOUR, limit=4)).more and chance.random() < 0.9:
        pass


async def _check(store: Store, was: Mapping[int, Mapping[tuple[Kind, str], int]]) -> None:
    ledger, newest = await store.read(lambda tx: tx.changes.ledger()), max(was)
    for at in range(ledger.floor, newest + 1):
        assert await store.read(sizes, at) == {name: size for (kind, name), size in was[at].items() if kind == MANAGED_CLUSTERS}
    changes = await store.read(lambda tx: tx.changes.since(ledger.compacted))
    assert [change.revision for change in changes] == list(range(ledger.compacted + 1, newest + 1))
    keys = [(kind, Key("", name)) for kind in KINDS for name in "abcdef"]
    kept = await store.read(lambda tx: [change for key in keys for change in tx.changes.past(*key, limit=999)])
    measured = [change for change in kept if change.revision <= ledger.measured]
    before = [one for change in measured for one in (change.labels_before, change.fields_before) if one]
    weight = sum(len(change.encoded) + 200 for change in measured)
    assert ledger.bytes == weight + sum(len(json.dumps(dict(one), separators=(",", ":"))) for one in before)


async def test_a_change_of_a_clock_that_was_ahead_is_as_old_as_the_one_after_it(store: Store, clock: ManualClock) -> None:
    await store.run(put, "a", size=1)
    clock.set_forward(400 * DAY)
    for size in range(5):
        await store.run(put, "b", size=size)
    clock.set_forward(-400 * DAY)
    clock.advance(HOUR)
    assert not (await store.run(compact, HOUR / 2, limit=2)).more, "nobody can know how old the others are"
    assert (await store.read(lambda tx: tx.changes.ledger())).compacted == 1
    await store.run(put, "c", size=1)
    clock.advance(HOUR)
    while (await store.run(compact, HOUR / 2, limit=2)).more:
        pass
    assert (await store.read(lambda tx: tx.changes.ledger())).compacted == 7


async def test_after_a_leap_the_log_before_it_goes_as_any_other(store: Store, clock: ManualClock) -> None:
    """The database had lost what it had shown. What is left of the log is no heavier for it, and its past can be read."""
    for size in range(5):
        for kind in (MANAGED_CLUSTERS, LEASES):
            await store.run(put, "a", kind, size=size)
    await store.run(put, "gone", SECRETS)
    await store.run(remove, "gone", SECRETS)
    assert await store.run(lambda tx: tx.changes.skip_ahead(20, None))  # type: ignore[attr-defined]
    await store.run(put, "b", size=1)
    assert not await store.run(lambda tx: tx.changes.measure())
    assert await store.read(lambda tx: sizes(tx, at=3)) == {"a": 1}
    clock.advance(2 * DAY)
    assert not (await store.run(compact, DAY)).more
    assert (await store.run(forget, DAY)).rows == 10, "all but the last states of what is there"
    assert await store.read(lambda tx: tx.changes.ledger().bytes) == await store.read(_weight)


def _weight(tx: Any) -> int:
    from hub.store.changelog.retention import _WEIGHT  # noqa: PLC0415 - only here

    return int(tx.changes._connection.execute(select(_WEIGHT)).scalar_one())


async def test_a_page_of_the_past_that_few_fit_takes_few_statements(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Portions grow: one at a time they were a statement for each object that does not fit."""
    for number in range(120):
        await store.run(put, f"c{number:03}", env="prod" if number == 100 else "test", size=number)
    newest = await store.read(lambda tx: tx.changes.newest())
    asked = []
    listed = ChangeLogPast._places

    def counted(self: ChangeLogPast, *arguments: Any) -> Any:
        asked.append(arguments[-1])
        return listed(self, *arguments)

    monkeypatch.setattr(ChangeLogPast, "_places", counted)
    label = (Requirement("env", Operator.EQUALS, ("prod",)),)
    assert await store.read(lambda tx: sizes(tx, newest - 1, labels=label, limit=1)) == {"c100": 100}
    assert len(asked) <= 4

    began = clock.now()
    for minutes in (0, 20, 10, *range(30, 60)):  # the clock was set back once
        clock.advance(began + timedelta(minutes=minutes) - clock.now())
        await store.run(put, "a", size=minutes)
    past, calls = ChangeLogPast.past, []

    def recorded(*arguments: Any, **bounds: Any) -> Any:
        calls.append(past(*arguments, **bounds))
        return calls[-1]

    monkeypatch.setattr(ChangeLogPast, "past", recorded)
    shows = present(object_history(store, clock, "open-cluster-management.io", MANAGED_CLUSTERS).shows)
    for minutes, found in ((-1, []), (5, [1]), (15, [3, 1]), (25, [3, 2, 1])):
        until = {"until": format_time(began + timedelta(minutes=minutes))}
        pages = [await shows(Key("", "a"), {"limit": limit, **until}) for limit in ("1", "500")]
        shown = [[int(change["revision"]) - newest for change in page["changes"]] for page in pages]
        assert (shown, "continue" in pages[0]["metadata"]) == ([found[:1], found], len(found) > 1)
    assert sum(map(len, calls)) <= 20, "documents are read only of changes in the range"


WRITERS, WRITES = 4, 40


async def test_log_is_trimmed_while_all_write_and_no_reader_misses_a_change(store: Store, clock: ManualClock) -> None:
    """Readers of the log at all speeds see every revision in its order, or get the error that theirs is too old."""
    done, trimmed = asyncio.Event(), asyncio.Condition()

    async def write(writer: int) -> None:
        for number in range(WRITES):
            await store.run(put, f"{writer}-{number % 5}", size=number)
            clock.advance(timedelta(seconds=1))
            async with trimmed:  # no writer ends before the log was trimmed several times
                await trimmed.wait()

    async def trim() -> None:
        keeping = RetentionPeriods(timedelta(seconds=20), timedelta(seconds=60), 2**30, HOUR, DAY, DAY, reserve=0)
        subject = Compaction(store, keeping, ClockGuard(clock, timedelta()))
        while not done.is_set():
            await subject.reconcile("all")
            async with trimmed:
                trimmed.notify_all()

    async def read(portion: int, pause: int) -> int:
        place = 0
        while True:
            ended, changes = done.is_set(), await store.read(_from, place, portion)
            if changes is None:
                oldest = await store.read(lambda tx: tx.changes.oldest())
                assert place < oldest, "nobody is refused who is not too old"
                place = oldest
                continue
            assert changes == list(range(place + 1, place + 1 + len(changes)))
            place += len(changes)
            if not changes and ended:
                return place
            for _ in range(pause + 1):
                await store.read(lambda tx: tx.now)

    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(read(*speed)) for speed in ((500, 0), (3, 0), (2, 6))]
        trimming = tasks.create_task(trim())
        await asyncio.gather(*(write(number) for number in range(WRITERS)))
        done.set()
        await trimming
    assert [reader.result() for reader in readers] == [WRITERS * WRITES] * len(readers)
    ledger = await store.read(lambda tx: tx.changes.ledger())
    assert 0 < ledger.floor < ledger.compacted, "the trial has to reach what it is about"
    assert await store.read(_from, ledger.compacted - 1, 1) is None
    assert await store.read(_from, ledger.compacted, 1) == [ledger.compacted + 1]


def _from(tx: Transaction, place: int, limit: int) -> list[int] | None:
    """Revisions; None: they are compacted."""
    try:
        return [change.revision for change in tx.changes.since(place, limit=limit)]
    except ExpiredError:
        return None


async def test_a_database_says_what_room_it_takes_and_has(store: Store, clock: ManualClock) -> None:
    for size in range(50):
        await store.run(put, "a", size=size, filler="x" * 10_000)
    full = await store.read(lambda tx: tx.volume())
    assert full.size > 500_000
    clock.advance(DAY)
    await store.run(compact, HOUR)
    await store.run(forget, None)
    after = await store.read(lambda tx: tx.volume())
    if full.free is not None and full.left is not None and after.left is not None:
        assert after.reusable - full.reusable > 400_000, "what was forgotten makes room for what is written next"
