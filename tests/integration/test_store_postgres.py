"""PostgreSQL under several replicas: no lost update, no overspent use, and nobody waits for ever."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from hub.domain.change import MANAGED_CLUSTERS, Key, Query
from hub.domain.credential import CredentialRecord
from hub.domain.heartbeat import Beat
from hub.ports import Transaction
from hub.services import credentials
from hub.store import SqlStore
from hub.store.engine import parse_url, writing_engine
from machinery.errors import ForbiddenError, UnavailableError
from machinery.identity import ClusterName, CredentialId

pytestmark = pytest.mark.postgres

END_OTHERS = text("""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'muster-hub'
""")


@pytest.fixture
async def replicas(migrated_postgres_url: str) -> AsyncIterator[tuple[SqlStore, SqlStore]]:
    both = tuple(SqlStore(migrated_postgres_url, poll=timedelta(milliseconds=50)) for _ in range(2))
    await asyncio.gather(*(store.open() for store in both))
    yield both[0], both[1]
    for store in both:
        await store.close()


@pytest.fixture
def other(migrated_postgres_url: str) -> Iterator[Engine]:
    """A session that holds things up."""
    engine = writing_engine(parse_url(migrated_postgres_url))
    yield engine
    engine.dispose()


def increment(tx: Transaction) -> int:
    old = tx.objects.get(MANAGED_CLUSTERS, Key("", "a"))
    count = 1 + (old.document["spec"]["count"] if old else 0)
    tx.objects.put(MANAGED_CLUSTERS, {"metadata": {"name": "a", "uid": "u"}, "spec": {"count": count}}, old, "tester")
    return count


async def test_replicas_that_open_at_once_migrate_once(postgres_url: str) -> None:
    stores = [SqlStore(postgres_url) for _ in range(2)]
    await asyncio.gather(*(store.open() for store in stores))
    assert [await store.read(lambda tx: tx.changes.newest()) for store in stores] == [0, 0]
    for store in stores:
        await store.close()


async def test_replicas_lose_no_update_overspend_no_use_and_see_changes_in_order(replicas: tuple[SqlStore, SqlStore]) -> None:
    seen: list[int] = []

    async def follow() -> None:
        async for changes in replicas[0].follow(0):
            seen.extend(change.revision for change in changes)
            if seen and seen[-1] == 60:
                return

    counts, _ = await asyncio.gather(asyncio.gather(*(store.run(increment) for _ in range(30) for store in replicas)), follow())
    assert sorted(counts) == seen == list(range(1, 61))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    record = CredentialRecord(CredentialId("c"), None, 3, now, datetime.max.replace(tzinfo=UTC), "ann")
    await replicas[0].run(lambda tx: tx.credentials.add(record))
    admissions = [store.run(credentials.admit, record.id, ClusterName(f"c{n}")) for n in range(20) for store in replicas]
    outcomes = await asyncio.gather(*admissions, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {tuple, ForbiddenError}
    assert await replicas[0].read(lambda tx: tx.credentials.spent(record.id)) == 3


async def test_beat_that_was_judged_cannot_be_replaced_before_the_verdict(
    replicas: tuple[SqlStore, SqlStore], other: Engine
) -> None:
    edge = ClusterName("edge")
    await replicas[0].run(lambda tx: tx.heartbeats.store([Beat(edge, timedelta(), available=True)]))

    def judge(tx: Transaction) -> None:
        tx.heartbeats.of(edge)
        with other.begin() as connection, pytest.raises(OperationalError, match="could not obtain lock"):
            connection.execute(text("SELECT * FROM heartbeats FOR UPDATE NOWAIT"))

    await replicas[0].run(judge)


async def test_reads_are_snapshots_a_read_only_server_says_so_and_an_ended_session_is_replaced(
    replicas: tuple[SqlStore, SqlStore], other: Engine
) -> None:
    await replicas[0].run(increment)

    def look_twice(tx: Transaction) -> tuple[int, int]:
        first = tx.objects.find(MANAGED_CLUSTERS, Query()).items[0].revision
        with other.begin() as connection:
            connection.execute(text("UPDATE objects SET revision = 99"))
        return first, tx.objects.find(MANAGED_CLUSTERS, Query()).items[0].revision

    def protect(tx: Transaction) -> None:
        tx.objects._connection.execute(text("SET TRANSACTION READ ONLY"))  # type: ignore[attr-defined]
        increment(tx)

    assert await replicas[0].read(look_twice) == (1, 1)
    with pytest.raises(UnavailableError, match="does not take writes"):
        await replicas[0].run(protect)
    with other.begin() as connection:
        connection.execute(text("UPDATE objects SET revision = 1"))
        connection.execute(END_OTHERS)
    assert await replicas[0].run(increment) == 2
    assert len((await replicas[1].read(lambda tx: tx.objects.find(MANAGED_CLUSTERS, Query()))).items) == 1
