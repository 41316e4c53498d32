"""Queries of one moment share a snapshot, and none suffers for another."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hub.ports import Transaction
from hub.store.looks import Looks
from machinery.errors import InvalidError, MusterError, UnavailableError
from tests.fakes.memory_store import MemoryStore


class Database:
    """A store that counts snapshots; `away`: why it has none."""

    def __init__(self) -> None:
        self.store = MemoryStore()
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


async def test_looks_of_one_moment_share_a_snapshot_and_each_has_its_own_answer(database: Database, looks: Looks) -> None:
    assert await all_of(*(looks.join(says(word)) for word in "abc")) == ["a", "b", "c"]
    assert database.snapshots == 1


async def test_a_look_that_comes_while_others_are_asked_sees_what_was_committed_before_it(
    database: Database, looks: Looks
) -> None:
    database.answers.clear()
    early = asyncio.create_task(looks.join(says("early")))
    await database.asked.wait()
    late = asyncio.create_task(looks.join(says("late")))
    database.answers.set()
    assert await all_of(early, late) == ["early", "late"]
    assert database.snapshots == 2


async def test_a_refusal_is_for_the_one_who_asked_alone(database: Database, looks: Looks) -> None:
    refused = InvalidError("no")
    answers = await all_of(looks.join(says("a")), looks.join(raises(refused)), looks.join(says("c")))
    assert answers == ["a", refused, "c"]
    assert database.snapshots == 1


async def test_a_defect_in_one_leaves_the_others_their_answers(looks: Looks) -> None:
    """On PostgreSQL a statement that fails ends the transaction of all."""
    broken = ZeroDivisionError()
    answers = await all_of(looks.join(says("a")), looks.join(raises(broken)), looks.join(says("c")))
    assert answers == ["a", broken, "c"]


async def test_a_database_that_is_away_is_waited_for_once_by_all(database: Database, looks: Looks) -> None:
    database.away = UnavailableError("away")
    answers = await all_of(*(looks.join(says(word)) for word in "abc"))
    assert answers == [database.away] * 3
    assert database.snapshots == 1


async def test_whoever_does_not_wait_any_more_is_not_asked_for_and_keeps_nobody_from_an_answer(
    database: Database, looks: Looks
) -> None:
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
