"""A store on SQLite, and the door's storage over it with its feed running."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from hub.apiserver.feed import ChangeFeed
from hub.apiserver.storage import ServiceStorage
from hub.store import SqlStore
from machinery.product import GROUP_SUFFIX


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'hub.db'}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    opened = SqlStore(url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def feed(store: SqlStore) -> AsyncIterator[ChangeFeed]:
    following = ChangeFeed(store, queue=4)
    task = asyncio.create_task(following.run(), name="feed")
    yield following
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.fixture
def storage(store: SqlStore, feed: ChangeFeed) -> ServiceStorage:
    return ServiceStorage(store, feed, GROUP_SUFFIX)
