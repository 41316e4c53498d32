"""Steps of a start that need what may be away: made again in time, told, and given up when it is over or the hub is to stop."""

import asyncio
from datetime import timedelta

import pytest

from machinery.errors import InvalidError, UnavailableError
from machinery.lifecycle.server import StartError
from machinery.lifecycle.starting import Perseverance


class Away:
    """Something that answers at the attempt of that number."""

    def __init__(self, until: int) -> None:
        self.attempts = 0
        self._until = until

    async def __call__(self) -> str:
        self.attempts += 1
        if self.attempts < self._until:
            raise UnavailableError("the database does not answer")
        return "open"


def persevering(limit: float, stop: asyncio.Event | None = None) -> Perseverance:
    return Perseverance(timedelta(seconds=limit), then="is it there?", stop=stop or asyncio.Event())


async def test_what_is_away_for_a_moment_is_waited_for() -> None:
    away = Away(until=3)
    assert await persevering(60)("opening it", away) == "open"
    assert away.attempts == 3


async def test_what_stays_away_ends_the_start_in_time_and_its_last_word_is_told() -> None:
    with pytest.raises(
        StartError, match=r"^opening it did not finish within 0\.2 s: the database does not answer: is it there\?$"
    ):
        await persevering(0.2)("opening it", Away(until=10_000))


async def test_what_hangs_ends_the_start_in_time() -> None:
    with pytest.raises(StartError, match=r"^opening it did not finish within 0\.05 s: is it there\?$"):
        await persevering(0.05)("opening it", asyncio.Event().wait)


async def test_what_is_wrong_and_not_away_is_told_at_once() -> None:
    async def wrong() -> None:
        raise InvalidError("the database has a newer schema")

    with pytest.raises(InvalidError):
        await persevering(60)("opening it", wrong)


async def test_a_stop_ends_the_wait() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    with pytest.raises(StartError, match="told to stop while it waited for opening it: the database does not answer"):
        async with asyncio.timeout(30):
            await persevering(60, stop)("opening it", Away(until=10_000))
