"""Changes: the newest in memory, followers of a request, and queries that share a snapshot."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from hub.api.meta.change import MANAGED_CLUSTERS, Change
from hub.grpc_door.session.changes import REMEMBERED, ChangeSubscriptions, Followed
from hub.ports import Transaction
from hub.registry.certificatesigningrequests import service as requests
from hub.store.changelog import tail as tails
from hub.store.changelog.tail import Tail
from hub.store.writer.coalesced_reads import Looks
from machinery.errors import InvalidError, MusterError, UnavailableError
from machinery.meta.objects import ChangeType, Key
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import Newcomer, fresh_store
from tests.fakes.virtual_time import in_virtual_time

LONG = timedelta(days=1)


def change(revision: int, size: int = 0) -> Change:
    key = Key("", f"c{revision}")
    return Change(revision, datetime(2026, 1, 1, tzinfo=UTC), "a", MANAGED_CLUSTERS, key, ChangeType.ADDED, b"x" * size)


def revisions(changes: Sequence[Change] | None) -> list[int] | None:
    return None if changes is None else [each.revision for each in changes]


class Log:
    """A change log without changes that counts how often it is read."""

    def __init__(self) -> None:
        self.asked = 0

    async def fetch(self, _after: int) -> tuple[Sequence[Change], int]:
        self.asked += 1
        return (), 0

    async def mend(self, _seen: int, _shown: Change | None) -> bool:
        return False


async def test_changes_that_follow_are_told_at_once_and_memory_is_bounded() -> None:
    tail = Tail(Log().fetch, Log().mend, 5, LONG)
    tail.offer([change(6), change(7)])
    assert (tail.newest, revisions(tail.after(5)), revisions(tail.after(6)), revisions(tail.after(7))) == (7, [6, 7], [7], [])
    assert revisions(tail.after(5, limit=1)) == [6]
    assert tail.after(4) is None
    tail.offer([change(7)])
    assert revisions(tail.after(5)) == [6, 7]
    tail = Tail(Log().fetch, Log().mend, 0, LONG)
    tail.offer([change(revision) for revision in range(1, tails.MAX_CHANGES + 11)])
    assert tail.after(9) is None
    assert len(tail.after(10, limit=10_000) or ()) == tails.MAX_CHANGES
    newest = tail.newest
    tail.offer([change(newest + 1, tails.MAX_BYTES), change(newest + 2, 1)])
    assert tail.after(newest) is None
    assert revisions(tail.after(newest + 1)) == [newest + 2]


def test_changes_behind_a_gap_wait_for_those_before_them() -> None:
    async def wait(compacted: int, *offered: int) -> tuple[int, list[int] | None, list[int] | None]:
        """What is newest and what follows 5 at first, and what follows it when the log of nine changes was read."""

        async def fetch(after: int) -> tuple[Sequence[Change] | None, int]:
            return None if after < compacted else [change(revision) for revision in range(after, 10)], 9

        tail = Tail(fetch, Log().mend, 5, timedelta(seconds=1))
        running = asyncio.create_task(tail.run())
        assert await tail.wait(4, LONG) == 5
        tail.offer([change(revision) for revision in offered])
        before = tail.newest, revisions(tail.after(5))
        assert await tail.wait(8, LONG) == 9
        running.cancel()
        return *before, revisions(tail.after(5))

    assert in_virtual_time(wait(0, 8)) == (5, [], [6, 7, 8, 9])
    assert in_virtual_time(wait(7, 6)) == (6, [6], None)


def test_poll_is_ten_times_rarer_where_notifications_arrive() -> None:
    async def looks(*, notified: bool) -> int:
        log = Log()
        running = asyncio.create_task(Tail(log.fetch, log.mend, 0, timedelta(milliseconds=500), lambda: notified).run())
        await asyncio.sleep(20)
        running.cancel()
        return log.asked

    assert abs(in_virtual_time(looks(notified=False)) - 40) <= 1
    assert abs(in_virtual_time(looks(notified=True)) - 4) <= 1


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


PATIENCE, LATER = timedelta(seconds=5), timedelta(hours=1)


async def told(followed: Followed, within: timedelta = PATIENCE) -> Change | None:
    async with asyncio.timeout(within.total_seconds()):
        await followed.wait(LATER)
    return followed.take()


@pytest.fixture
def name(newcomer: Newcomer) -> str:
    return newcomer.submit(newcomer.accepted())


@asynccontextmanager
async def running_feed(feed: ChangeSubscriptions) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(feed.run())
        yield
        task.cancel()


async def test_follower_gets_the_newest_change_of_its_request_alone_or_asks_the_store(
    store: InlineStore, newcomer: Newcomer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = ChangeSubscriptions(store)
    with feed.followed(name) as followed, feed.followed("another") as other:
        async with running_feed(feed):
            assert await told(followed) is None  # the feed begins, so that only the store knows
            other.take()
            newcomer.approve(name)
            first = await told(followed)
            with feed.followed(name) as late, feed.followed("another") as other_late:
                assert late.take() is first is not None, "a recent change"
                assert other_late.take() is None
            newcomer.issue(name)
            newest = await told(followed)
            assert "certificate" not in first.document["status"]
            assert newest is not None
            assert newest.revision > first.revision
            assert newest.document["status"]["certificate"]
            assert other.take() is None
            monkeypatch.setattr("hub.store.changelog.tail.MAX_CHANGES", 0)
            newcomer.store.transact(lambda tx: requests.remove(tx, requests.find(tx, name), "ann"))
            store.transact(lambda tx: tx.changes.compact(tx.now + LATER))
            assert await told(followed) is None, "changes that are compacted already"


async def test_change_that_is_old_deleted_or_in_doubt_is_not_recent(store: InlineStore, newcomer: Newcomer, name: str) -> None:
    feed = ChangeSubscriptions(store)
    with feed.followed(name) as before:
        async with running_feed(feed):
            await told(before)
            newcomer.approve(name)
            seen = await told(before)
    assert seen is not None
    feed._wake(replace(seen, revision=seen.revision + 1, type=ChangeType.DELETED))
    with feed.followed(name) as gone:
        assert gone.take() is None
    feed._wake(replace(seen, revision=seen.revision + 2))
    feed._wake_all()
    with feed.followed(name) as in_doubt:
        assert in_doubt.take() is None
    for number in range(REMEMBERED + 1):
        feed._wake(replace(seen, revision=seen.revision + 3 + number, key=Key("", f"request-{number}")))
    with feed.followed("request-0") as oldest, feed.followed("request-1") as next_one:
        assert oldest.take() is None
        assert next_one.take() is not None


def test_doubt_outlives_the_changes_around_it(store: InlineStore, newcomer: Newcomer, name: str) -> None:
    newcomer.approve(name)
    change = store.transact(lambda tx: tx.changes.since(0))[-1]
    followed = Followed()
    followed.changed(change)
    followed.wake()
    followed.changed(change)
    assert followed.take() is None
    assert followed.take() is None
    followed.changed(change)
    assert followed.take() is change
    assert followed.take() is None


async def test_changes_up_to_what_was_read_are_no_news(store: InlineStore, newcomer: Newcomer, name: str) -> None:
    newcomer.approve(name)
    newcomer.issue(name)
    *_, approved, issued = store.transact(lambda tx: tx.changes.since(0))
    followed = Followed()
    followed.changed(approved)
    followed.read(approved.revision)
    with pytest.raises(TimeoutError):
        await told(followed, within=timedelta())
    followed.changed(approved)
    followed.changed(issued)
    assert await told(followed) is issued
    followed.read(issued.revision)
    followed.changed(approved)
    assert followed.take() is None


class Database:
    """A store that counts snapshots; `away`: why it has none."""

    def __init__(self) -> None:
        self.store = fresh_store()
        self.snapshots = 0
        self.away: MusterError | None = None
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()

    async def read(self, query: Callable[[Transaction], Any]) -> Any:
        self.snapshots += 1
        self.asked.set()
        await self.answers.wait()
        if self.away is not None:
            raise self.away
        return await self.store.read(query)


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def looks(database: Database) -> Looks:
    return Looks(database.read)


Answer = str | BaseException


async def all_of(*asked: Awaitable[str]) -> list[Answer]:
    return list(await asyncio.gather(*asked, return_exceptions=True))


def says(word: str) -> Callable[[Transaction], str]:
    return lambda _tx: word


def raises(error: Exception) -> Callable[[Transaction], str]:
    def refuse(_tx: Transaction) -> str:
        raise error

    return refuse


async def test_queries_of_one_moment_share_a_snapshot_and_each_has_its_own_answer(database: Database, looks: Looks) -> None:
    assert await all_of(*(looks.join(says(word)) for word in "abc")) == ["a", "b", "c"]
    assert database.snapshots == 1
    refused, broken = InvalidError("no"), ZeroDivisionError()
    assert await all_of(looks.join(says("a")), looks.join(raises(refused)), looks.join(says("c"))) == ["a", refused, "c"]
    assert database.snapshots == 2
    # On PostgreSQL a statement that fails ends the transaction of all.
    assert await all_of(looks.join(says("a")), looks.join(raises(broken)), looks.join(says("c"))) == ["a", broken, "c"]
    database.away, before = UnavailableError("away"), database.snapshots
    assert await all_of(*(looks.join(says(word)) for word in "abc")) == [database.away] * 3
    assert database.snapshots == before + 1


async def test_look_during_another_one_sees_what_was_committed_before_it(database: Database, looks: Looks) -> None:
    database.answers.clear()
    early = asyncio.create_task(looks.join(says("early")))
    await database.asked.wait()
    late = asyncio.create_task(looks.join(says("late")))
    database.answers.set()
    assert await all_of(early, late) == ["early", "late"]
    assert database.snapshots == 2


async def test_canceled_look_is_not_asked_for_and_keeps_nobody_from_an_answer(database: Database, looks: Looks) -> None:
    gone, here = asyncio.create_task(looks.join(says("gone"))), asyncio.create_task(looks.join(says("here")))
    await asyncio.sleep(0)
    gone.cancel()
    assert await here == "here"
    database.answers.clear()
    database.asked.clear()
    leaving, staying = (asyncio.create_task(looks.join(says(word))) for word in ("leaving", "staying"))
    await database.asked.wait()
    leaving.cancel()
    await asyncio.wait({leaving})
    database.answers.set()
    assert await staying == "staying"
    assert gone.cancelled()
    assert leaving.cancelled()
