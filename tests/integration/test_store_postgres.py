"""PostgreSQL under several replicas: no lost update, no overspent use, and nobody waits for ever."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

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
from tests.fakes.databases import SqlDatabase

pytestmark = pytest.mark.postgres

END_OTHERS = text("""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND application_name = 'muster-hub'
""")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    from tests.fakes.postgres import postgres_server  # noqa: PLC0415 - only where the package is installed

    with postgres_server() as server:
        yield server


@pytest.fixture
async def replicas(url: str) -> AsyncIterator[tuple[SqlStore, SqlStore]]:
    SqlDatabase(url).clear()
    both = tuple(SqlStore(url, poll=timedelta(milliseconds=50)) for _ in range(2))
    await asyncio.gather(*(store.open() for store in both))
    yield both[0], both[1]
    for store in both:
        await store.close()


@pytest.fixture
def other(url: str) -> Iterator[Engine]:
    """A session that holds things up."""
    engine = writing_engine(parse_url(url))
    yield engine
    engine.dispose()


def increment(tx: Transaction) -> int:
    old = tx.objects.get(MANAGED_CLUSTERS, Key("", "a"))
    count = 1 + (old.document["spec"]["count"] if old else 0)
    tx.objects.put(MANAGED_CLUSTERS, {"metadata": {"name": "a", "uid": "u"}, "spec": {"count": count}}, old, "tester")
    return count


async def test_replicas_that_open_at_once_migrate_once(replicas: tuple[SqlStore, SqlStore]) -> None:
    assert [await store.read(lambda tx: tx.changes.newest()) for store in replicas] == [0, 0]


async def test_no_update_is_lost_between_replicas(replicas: tuple[SqlStore, SqlStore]) -> None:
    counts = await asyncio.gather(*(store.run(increment) for _ in range(30) for store in replicas))
    assert sorted(counts) == list(range(1, 61))


async def test_uses_are_not_overspent_between_replicas(replicas: tuple[SqlStore, SqlStore]) -> None:
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


async def test_follower_sees_both_replicas_changes_in_order(replicas: tuple[SqlStore, SqlStore]) -> None:
    async def put(store: SqlStore, name: str) -> None:
        document = {"metadata": {"name": name, "uid": name}}
        await store.run(lambda tx: tx.objects.put(MANAGED_CLUSTERS, document, None, "tester"))

    seen: list[int] = []

    async def follow() -> None:
        async for changes in replicas[0].follow(0):
            seen.extend(change.revision for change in changes)
            if seen and seen[-1] == 60:
                return

    async with asyncio.timeout(30):
        writes = [put(store, f"{side}{n}") for n in range(30) for side, store in zip("ab", replicas, strict=True)]
        await asyncio.gather(follow(), *writes)
    assert seen == list(range(1, 61))


async def test_read_is_a_snapshot(replicas: tuple[SqlStore, SqlStore], other: Engine) -> None:
    await replicas[0].run(increment)

    def look_twice(tx: Transaction) -> tuple[int, int]:
        first = tx.objects.find(MANAGED_CLUSTERS, Query()).items[0].revision
        with other.begin() as connection:
            connection.execute(text("UPDATE objects SET revision = 99"))
        return first, tx.objects.find(MANAGED_CLUSTERS, Query()).items[0].revision

    assert await replicas[0].read(look_twice) == (1, 1)


async def test_session_that_was_ended_is_replaced(replicas: tuple[SqlStore, SqlStore], other: Engine) -> None:
    await replicas[0].run(increment)
    with other.begin() as connection:
        connection.execute(END_OTHERS)
    assert await replicas[0].run(increment) == 2
    assert len((await replicas[1].read(lambda tx: tx.objects.find(MANAGED_CLUSTERS, Query()))).items) == 1


async def test_read_only_server_says_so(replicas: tuple[SqlStore, SqlStore]) -> None:
    def protect(tx: Transaction) -> None:
        tx.objects._connection.execute(text("SET TRANSACTION READ ONLY"))  # type: ignore[attr-defined]
        increment(tx)

    with pytest.raises(UnavailableError, match="does not take writes"):
        await replicas[0].run(protect)


async def test_password_is_in_no_error(tmp_path: Path) -> None:
    store = SqlStore(f"postgresql://hub:secret@/hub?host={tmp_path}")
    with pytest.raises(UnavailableError) as refused:
        await store.open()
    assert "secret" not in str(refused.value)
    await store.close()
