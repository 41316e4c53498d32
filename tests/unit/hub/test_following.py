"""Who follows a certificate request is given its changes, and is told when only the store knows."""

import asyncio
from datetime import timedelta

import pytest

from hub.domain.change import Change
from hub.rpc.feed import Feed
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
