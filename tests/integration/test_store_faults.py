"""A store whose database misbehaves: a clear sentence, nothing lost, and work goes on when the fault is gone."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from hub.ports import Transaction
from hub.store import SqlStore
from hub.store.changelog.changes import LEAP
from hub.store.engine.engine import parse_url
from machinery.errors import InvalidError, UnavailableError
from tests.checks import check_refusal_of, present
from tests.fakes.databases import followed, names, put, replicas
from tests.trials import repeated

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.store.engine.engine.BUSY_SECONDS", 0.1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqlStore]:
    async with replicas(f"sqlite:///{path}", 1) as (opened,):
        yield opened


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process's write lock: SQLite distinguishes connections, not processes."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


async def test_database_locked_by_another_process(store: SqlStore, path: Path) -> None:
    await store.run(put, "before")
    with locked(path):
        await check_refusal_of(UnavailableError, store.run(put, "during"), match="locked by another process")
        await store.check()
        outcomes = await asyncio.gather(*(store.run(put, f"many{n}") for n in range(20)), return_exceptions=True)
        assert ({type(outcome) for outcome in outcomes}, await store.read(names)) == ({UnavailableError}, ["before"])
        with pytest.raises(UnavailableError, match="locked by another process"):
            await store.check()  # the lock does not go
    await store.check()
    await store.run(put, "after")
    assert await store.read(names) == ["after", "before"]


async def test_a_log_that_has_lost_nothing_is_not_begun_anew(store: SqlStore) -> None:
    """The caller has read from a server that is behind, or another replica was faster."""

    def bounds(tx: Transaction) -> tuple[int, int]:
        return tx.changes.newest(), tx.changes.ledger().compacted

    for number in range(5):
        await store.run(put, f"c{number}")
    log = await store.read(lambda tx: tx.changes.since(0))
    for seen, shown in ((5, log[-1]), (5, None), (3, log[2])):
        assert not await store._repair(seen, shown)
    assert await store.read(bounds) == (5, 0)
    assert await store._repair(5, replace(log[-1], encoded=b"{}")), "another change has this revision"
    far = 5 + LEAP
    assert await store.read(bounds) == (far, far)
    assert not await store._repair(5, replace(log[-1], encoded=b"{}")), "once is enough for all replicas"
    assert await store._repair(far + 1, None), "the newest fell"
    assert await store.read(bounds) == (far + 1 + LEAP,) * 2


async def test_disk_full(store: SqlStore) -> None:
    await store.run(put, "before")

    def fill(tx: Transaction, limit: int) -> None:
        tx.objects._connection.exec_driver_sql(f"PRAGMA max_page_count = {limit}")  # type: ignore[attr-defined]

    await store.run(fill, 1)  # SQLite takes the present size for the limit
    await check_refusal_of(UnavailableError, store.run(put, "large", 1_000_000), match="is full: make room")
    outcomes = await asyncio.gather(
        store.run(put, "small"), store.run(put, "larger", 2_000_000), store.run(put, "tiny"), return_exceptions=True
    )
    assert isinstance(outcomes[1], UnavailableError)
    acknowledged = {name for name, outcome in zip(("small", "", "tiny"), outcomes, strict=True) if outcome is None}
    assert set(await store.read(names)) == {"before"} | acknowledged
    await store.run(fill, 1_000_000)
    await store.run(put, "large", 1_000_000)
    assert set(await store.read(names)) == {"before", "large"} | acknowledged


async def test_fault_found_while_the_last_one_ends_is_not_forgotten(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = present(store._writer)
    full = OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))
    run, again = store.run, [full]

    async def full_behind(*args: Any, **kwargs: Any) -> Any:
        outcome = await run(*args, **kwargs)
        if again:
            writer._note(again.pop())
        return outcome

    monkeypatch.setattr(store, "run", full_behind)
    writer._note(full)
    await store.check()
    assert writer.fault is not None
    await store.check()
    assert writer.fault is None


async def test_file_that_cannot_be_written_and_query_that_writes_are_refused(store: SqlStore) -> None:
    await store.run(put, "before")

    def protect(tx: Transaction, value: str) -> None:
        tx.objects._connection.exec_driver_sql(f"PRAGMA query_only = {value}")  # type: ignore[attr-defined]

    await check_refusal_of(UnavailableError, store.read(lambda tx: tx.facts.set("name", "value")), match="cannot be written")
    await store.run(protect, "ON")
    await check_refusal_of(UnavailableError, store.run(put, "during"), match="cannot be written")
    assert await store.read(lambda tx: (names(tx), tx.facts.get("name"))) == (["before"], None)


async def test_database_that_cannot_be_opened_says_why_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    (tmp_path / "text.db").write_bytes(b"not a database at all" * 100)
    table = {
        f"sqlite:///{tmp_path}/nowhere/hub.db": "cannot be opened",
        f"sqlite:///{tmp_path}/text.db": "not a SQLite database",
        "postgresql://nobody:secret@127.0.0.1:1/hub": "does not answer",
        f"postgresql://hub:secret@/hub?host={tmp_path}": "does not answer",
    }
    if os.geteuid() != 0:  # root may write everywhere
        table[f"sqlite:///{tmp_path}/closed/hub.db"] = "cannot be opened"
    for url, words in table.items():
        store = SqlStore(url)
        with pytest.raises(UnavailableError, match=words) as refused:
            await store.open()
        assert "secret" not in str(refused.value)
        await check_refusal_of(UnavailableError, store.run(put, "a"))
        await store.close()


def test_url_that_is_none_is_refused_without_its_password() -> None:
    for url in ("", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://root:secret@host/db"):
        with pytest.raises(InvalidError, match="database") as refused:
            parse_url(url)
        assert "secret" not in str(refused.value)


def _killed_writer(path: Path, after: int) -> set[str]:
    """Runs a process that writes, kills it after so many acknowledgements, and returns them and what came beyond."""
    command = [sys.executable, "-m", "tests.fakes.store_writer", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = {line.strip() for _, line in zip(range(after), writer.stdout, strict=False)}
        writer.send_signal(signal.SIGKILL)
        return acknowledged | {line.strip() for line in writer.stdout if line.endswith("\n")}


@repeated(1, 50)
async def test_acknowledged_writes_survive_kill_9(path: Path, trial: int) -> None:
    after = Random(trial).randrange(1, 500)
    acknowledged = await asyncio.to_thread(_killed_writer, path, after)
    async with replicas(f"sqlite:///{path}", 1) as (store,):
        found, log = await store.read(names), await store.read(_log)
    assert len(acknowledged) >= after
    assert acknowledged <= set(found)
    assert sorted(log) == sorted(found)
    assert len(found) == 2 * len({name.removesuffix("-a").removesuffix("-b") for name in found})


def _log(tx: Transaction) -> list[str]:
    found: list[str] = []
    after = 0
    while changes := tx.changes.since(after):
        assert [change.revision for change in changes] == list(range(after + 1, after + 1 + len(changes)))
        found += [change.key.name for change in changes]
        after = changes[-1].revision
    return found


async def test_changes_of_another_process_are_found_by_the_poll(path: Path) -> None:
    async with replicas(f"sqlite:///{path}", poll=timedelta(milliseconds=20)) as (ours, theirs):
        await asyncio.gather(*(store.run(put, f"{side}{n}") for n in range(20) for side, store in (("a", ours), ("b", theirs))))
        assert (await followed(ours, 0, 40), await ours.wait_for_change(39, timedelta(hours=1))) == (list(range(1, 41)), 40)


async def test_heartbeats_overtake_the_writes_that_wait_and_no_transaction_is_long(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.store.writer.write_queue.TOGETHER", -1.0)  # the time of every transaction is over at once
    begun, released = Event(), Event()
    done: dict[str, datetime] = {}

    def hold(_: Transaction) -> None:
        begun.set()
        assert released.wait(30)

    def note(tx: Transaction, name: str) -> None:
        done[name] = tx.now

    async with replicas(f"sqlite:///{path}", 1) as (store,):
        tasks = [asyncio.create_task(store.run(hold))]
        await asyncio.to_thread(begun.wait)
        assert store.write_delay == 0
        tasks += [asyncio.create_task(store.run(note, f"join {number}")) for number in range(5)]
        tasks += [asyncio.create_task(store.run_first(note, "beat"))]
        await asyncio.sleep(0)
        assert store.write_delay > 0
        released.set()
        await asyncio.gather(*tasks)
        assert store.write_delay == 0
    assert list(done) == ["beat", *(f"join {number}" for number in range(5))]
    assert len(set(done.values())) == len(done), "each in a transaction of its own"


async def test_close_waits_for_what_was_submitted(path: Path) -> None:
    store = SqlStore(f"sqlite:///{path}")
    await store.open()
    writes = [asyncio.create_task(store.run(put, f"c{n}")) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    outcomes: list[Any] = await asyncio.gather(*writes, return_exceptions=True)
    async with replicas(f"sqlite:///{path}", 1) as (reopened,):
        assert len(await reopened.read(names)) == outcomes.count(None) == 50
