"""A database on PostgreSQL, a store on it and the lock in it."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from hub.election.fence import FencedStore
from hub.election.locks import RowLock
from hub.store import SqlStore
from hub.store.engine.timeouts import SessionLimits
from hub.store.writer.leader_lock_connection import SqlLeaderLockConnection
from machinery.election import KUBERNETES, Leadership, LockRecord
from machinery.runtime.clock import SystemClock


@pytest.fixture
def url(migrated_postgres_url: str) -> str:
    return migrated_postgres_url


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(url, session=SessionLimits(timedelta(minutes=1)))  # a transaction may stand still on a busy machine
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def row(url: str) -> AsyncIterator[RowLock]:
    """The lock in that database, over a connection of its own."""
    line = SqlLeaderLockConnection(url, lease=KUBERNETES.lease)
    yield RowLock(line)
    await line.close()


def fenced(store: SqlStore, held: LockRecord) -> FencedStore:
    """As the leader's controllers have it, whatever happened to the lock since."""
    flag = Leadership(SystemClock())
    flag.hold(held.term, SystemClock().monotonic() + 1000)
    return FencedStore(store, flag, held.term)
