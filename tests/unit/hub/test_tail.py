"""The newest changes in memory: in order, without a gap, for all followers."""

import asyncio
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from hub.domain.change import MANAGED_CLUSTERS, Change, ChangeType, Key
from hub.store import tail as tails
from hub.store.tail import RARELY, Tail
from machinery.errors import UnavailableError
from tests.fakes.virtual_time import in_virtual_time

LONG = timedelta(days=1)
SOON = timedelta(seconds=10)


def change(revision: int, size: int = 0) -> Change:
    key = Key("", f"c{revision}")
    return Change(revision, datetime(2026, 1, 1, tzinfo=UTC), "a", MANAGED_CLUSTERS, key, ChangeType.ADDED, b"x" * size)


def revisions(changes: Sequence[Change] | None) -> list[int] | None:
    return None if changes is None else [each.revision for each in changes]


@dataclass
class Log:
    """A change log that can be away, and compacted."""

    newest: int = 0
    compacted: int = 0
    failures: int = 0
    asked: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    intact: bool = False
    """Nothing is lost, whatever was read."""
    mended: list[tuple[int, Change | None]] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def fetch(self, after: int) -> tuple[Sequence[Change] | None, int]:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            raise UnavailableError("away")
        if after < self.compacted:
            return None, self.newest
        until = min(self.newest, after + 4)
        return [change(revision, self.sizes.get(revision, 0)) for revision in range(max(after, 1), until + 1)], self.newest

    async def mend(self, seen: int, shown: Change | None) -> bool:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("away")
        self.mended.append((seen, shown))
        if self.intact:
            return False
        self.newest = self.compacted = max(seen, self.newest) + 100
        return True


async def test_changes_that_follow_are_told_at_once() -> None:
    tail = Tail(Log().fetch, Log().mend, 5, LONG)
    tail.offer([change(6), change(7)])
    assert (tail.newest, revisions(tail.after(5)), revisions(tail.after(6)), revisions(tail.after(7))) == (7, [6, 7], [7], [])
    assert revisions(tail.after(5, limit=1)) == [6]
    assert tail.after(4) is None
    tail.offer([change(7)])
    assert revisions(tail.after(5)) == [6, 7]


async def test_changes_behind_a_gap_wait_for_those_before_them() -> None:
    log = Log(newest=9)
    tail = Tail(log.fetch, log.mend, 5, LONG)
    running = asyncio.create_task(tail.run())
    tail.offer([change(8)])
    assert (tail.newest, revisions(tail.after(5))) == (5, [])
    assert await tail.wait(8, SOON) == 9
    assert revisions(tail.after(5)) == [6, 7, 8, 9]
    running.cancel()


async def test_poll_finds_what_nobody_offered() -> None:
    log = Log(newest=3)
    tail = Tail(log.fetch, log.mend, 0, timedelta(milliseconds=1))
    running = asyncio.create_task(tail.run())
    assert await tail.wait(2, SOON) == 3
    running.cancel()


async def test_who_is_told_of_others_looks_seldom_and_at_once_when_told() -> None:
    log = Log(newest=3)
    tail = Tail(log.fetch, log.mend, 0, LONG / RARELY, lambda: True)
    running = asyncio.create_task(tail.run())
    await asyncio.sleep(0)
    tail.ring()
    assert await tail.wait(2, SOON) == 3
    running.cancel()


@pytest.mark.parametrize(("told", "looks"), [(False, 40), (True, 4)])
def test_where_word_comes_by_itself_the_poll_is_a_tenth(*, told: bool, looks: int) -> None:
    async def looked() -> int:
        log = Log(newest=0)
        tail = Tail(log.fetch, log.mend, 0, timedelta(milliseconds=500), lambda: told)
        running = asyncio.create_task(tail.run())
        await asyncio.sleep(20)
        running.cancel()
        return log.asked

    assert abs(in_virtual_time(looked()) - looks) <= 1


async def test_log_that_is_away_is_asked_again() -> None:
    log = Log(newest=3, failures=5)
    tail = Tail(log.fetch, log.mend, 0, timedelta(milliseconds=1))
    running = asyncio.create_task(tail.run())
    assert await tail.wait(2, SOON) == 3
    running.cancel()


def test_a_defect_of_the_log_is_told_once_and_ends_nothing() -> None:
    async def looked() -> list[MutableMapping[str, Any]]:
        asked = 0

        async def broken(_after: int) -> tuple[Sequence[Change], int]:
            nonlocal asked
            asked += 1
            raise RuntimeError("a row that nobody can read" if asked < 10 else "another row")

        with capture_logs() as lines:
            running = asyncio.create_task(Tail(broken, Log().mend, 0, timedelta(seconds=1)).run())
            await asyncio.sleep(20)
            running.cancel()
        assert asked > 10
        return lines

    lines = in_virtual_time(looked())
    assert [(line["error"], line["log_level"]) for line in lines] == [
        ("a row that nobody can read", "error"),
        ("another row", "error"),
    ]


async def test_what_was_compacted_before_it_was_read_is_left_to_the_log() -> None:
    log = Log(newest=9, compacted=7)
    tail = Tail(log.fetch, log.mend, 5, timedelta(milliseconds=1))
    tail.offer([change(6)])
    running = asyncio.create_task(tail.run())
    assert await tail.wait(8, SOON) == 9
    assert tail.after(5) is None
    tail.offer([change(10)])
    assert revisions(tail.after(9)) == [10]
    running.cancel()


async def test_a_log_longer_than_a_batch_is_read_to_its_end() -> None:
    log = Log(newest=15)
    tail = Tail(log.fetch, log.mend, 0, LONG)
    running = asyncio.create_task(tail.run())
    tail.ring()
    assert await tail.wait(log.newest - 1, SOON) == log.newest
    running.cancel()


async def test_the_bell_is_as_good_as_the_poll() -> None:
    log = Log(newest=3)
    tail = Tail(log.fetch, log.mend, 0, LONG)
    running = asyncio.create_task(tail.run())
    tail.ring()
    assert await tail.wait(2, SOON) == 3
    running.cancel()


async def test_a_log_that_went_back_is_continued_far_above_what_was_shown() -> None:
    log = Log(newest=3, failures=2)
    tail = Tail(log.fetch, log.mend, 5, timedelta(milliseconds=1))
    running = asyncio.create_task(tail.run())
    assert await tail.wait(5, SOON) == log.newest == 105
    assert tail.after(5) is None
    running.cancel()


async def test_a_log_whose_newest_change_is_another_one_is_not_the_one_that_was_shown() -> None:
    log = Log(newest=9, sizes={6: 17})
    tail = Tail(log.fetch, log.mend, 5, timedelta(milliseconds=1))
    tail.offer([change(6)])
    running = asyncio.create_task(tail.run())
    assert await tail.wait(6, SOON) == log.newest == 109
    assert tail.after(6) is None
    running.cancel()


def test_a_log_that_only_seemed_to_have_lost_something_is_read_on_at_the_next_look() -> None:
    """A server answered that is behind; the one that counts said that nothing is lost."""

    async def followed() -> tuple[int, int, list[tuple[int, Change | None]]]:
        log = Log(newest=4, intact=True)
        tail = Tail(log.fetch, log.mend, 4, timedelta(seconds=1))
        tail.offer([change(5)])
        running = asyncio.create_task(tail.run())
        await asyncio.sleep(3.5)
        looks = log.asked
        log.newest = 6
        await tail.wait(5, SOON)
        running.cancel()
        return looks, tail.newest, log.mended

    looks, newest, mended = in_virtual_time(followed())
    assert newest == 6
    assert looks <= 4, "no haste while it is behind"
    assert mended == [(5, change(5))] * looks


async def test_memory_is_bounded_by_number_and_by_bytes() -> None:
    tail = Tail(Log().fetch, Log().mend, 0, LONG)
    tail.offer([change(revision) for revision in range(1, tails.MAX_CHANGES + 11)])
    assert tail.after(9) is None
    assert len(tail.after(10, limit=10_000) or ()) == tails.MAX_CHANGES
    newest = tail.newest
    tail.offer([change(newest + 1, tails.MAX_BYTES), change(newest + 2, 1)])
    assert tail.after(newest) is None
    assert revisions(tail.after(newest + 1)) == [newest + 2]


async def test_waiting_ends_with_the_time() -> None:
    tail = Tail(Log().fetch, Log().mend, 5, LONG)
    assert await tail.wait(5, timedelta()) == 5
    assert await tail.wait(4, LONG) == 5
