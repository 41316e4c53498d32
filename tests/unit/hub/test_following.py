"""Who follows a certificate request is given its changes, and is told when only the store knows."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from hub.domain.change import Change, ChangeType, Key
from hub.rpc.feed import REMEMBERED, Feed
from hub.rpc.following import Followed
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import Newcomer

SOON, LATER = timedelta(seconds=5), timedelta(hours=1)


async def told(followed: Followed, within: timedelta = SOON) -> Change | None:
    """What is taken once there is something to take."""
    async with asyncio.timeout(within.total_seconds()):
        await followed.wait(LATER)
    return followed.take()


@pytest.fixture
def name(newcomer: Newcomer) -> str:
    requester = newcomer.bootstrap()
    newcomer.join(requester)
    newcomer.accept()
    return newcomer.submit(requester)


async def test_a_follower_is_given_the_newest_change_of_its_request_alone(
    store: MemoryStore, newcomer: Newcomer, name: str
) -> None:
    feed = Feed(store)
    with feed.followed(name) as followed, feed.followed("another") as other:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(feed.run())
            assert await told(followed) is None  # the feed begins, so that only the store knows
            other.take()
            newcomer.approve(name)
            first = await told(followed)
            newcomer.issue(name)
            newest = await told(followed)
            running.cancel()
        assert first is not None
        assert "certificate" not in first.document["status"]
        assert newest is not None
        assert newest.revision > first.revision
        assert newest.document["status"]["certificate"]
        assert other.take() is None


async def test_who_begins_to_follow_is_given_what_is_recent(store: MemoryStore, newcomer: Newcomer, name: str) -> None:
    feed = Feed(store)
    with feed.followed(name) as before:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(feed.run())
            await told(before)
            newcomer.approve(name)
            seen = await told(before)
            with feed.followed(name) as followed, feed.followed("another") as other:
                assert followed.take() is seen is not None
                assert other.take() is None
            running.cancel()


async def test_what_is_gone_or_may_have_been_missed_is_not_recent(store: MemoryStore, newcomer: Newcomer, name: str) -> None:
    feed = Feed(store)
    with feed.followed(name) as before:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(feed.run())
            await told(before)
            newcomer.approve(name)
            seen = await told(before)
            running.cancel()
    assert seen is not None
    feed._wake(replace(seen, revision=seen.revision + 1, type=ChangeType.DELETED))
    with feed.followed(name) as gone:
        assert gone.take() is None
    feed._wake(replace(seen, revision=seen.revision + 2))
    feed._wake_all()
    with feed.followed(name) as in_doubt:
        assert in_doubt.take() is None


async def test_only_so_many_requests_are_remembered(store: MemoryStore, newcomer: Newcomer, name: str) -> None:
    feed = Feed(store)
    with feed.followed(name) as before:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(feed.run())
            await told(before)
            newcomer.approve(name)
            seen = await told(before)
            running.cancel()
    assert seen is not None
    for number in range(REMEMBERED):
        feed._wake(replace(seen, revision=seen.revision + number, key=Key("", f"request-{number}")))
    with feed.followed(name) as oldest, feed.followed("request-0") as next_one:
        assert oldest.take() is None
        assert next_one.take() is not None


async def test_a_follower_asks_the_store_after_changes_that_nobody_can_tell(
    store: MemoryStore, newcomer: Newcomer, name: str
) -> None:
    feed = Feed(store)
    with feed.followed(name) as followed:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(feed.run())
            await told(followed)
            newcomer.approve(name)
            store.transact(lambda tx: tx.changes.compact(tx.now + LATER))
            assert await told(followed) is None
            running.cancel()


def test_doubt_outlives_the_changes_around_it(store: MemoryStore, newcomer: Newcomer, name: str) -> None:
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


async def test_changes_up_to_what_was_read_are_no_news(store: MemoryStore, newcomer: Newcomer, name: str) -> None:
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
