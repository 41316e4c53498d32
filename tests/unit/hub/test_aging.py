"""Sessions that become old."""

import asyncio
from datetime import timedelta
from random import Random

import pytest

from hub.rpc.aging import BACKSTOP, JITTER, LONGEST_HINT, Age, Aging
from machinery.errors import MusterError, UnavailableError

MOMENT = timedelta(milliseconds=10)


class Leaving:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.hints: list[timedelta] = []
        self.ended: asyncio.Future[MusterError] = asyncio.get_running_loop().create_future()

    def drain(self, reconnect_after: timedelta, reason: str = "") -> None:
        assert "old" in reason
        self.hints.append(reconnect_after)

    def end(self, error: MusterError) -> None:
        assert self.hints, "nobody is ended who was not asked before"
        self.ended.set_result(error)


async def test_an_old_session_is_asked_to_leave_and_ends_when_it_does_not() -> None:
    session = Leaving()
    Aging(Age(MOMENT, MOMENT), session)
    async with asyncio.timeout(5):
        assert isinstance(await session.ended, UnavailableError)
    assert session.hints == [MOMENT / 2]


async def test_a_session_that_has_ended_is_asked_nothing() -> None:
    session = Leaving()
    aging = Aging(Age(MOMENT, MOMENT), session)
    aging.cancel()
    never = Aging(Age(timedelta(), MOMENT), session)
    await asyncio.sleep(3 * MOMENT.total_seconds())
    assert session.hints == []
    never.cancel()


def test_sessions_that_began_at_once_do_not_leave_at_once() -> None:
    age, random = Age(), Random(1)
    drawn = sorted(age.drawn(random) for _ in range(1_000))
    assert drawn[0] >= age.limit * (1 - JITTER)
    assert drawn[-1] <= age.limit
    assert drawn[900] - drawn[100] > age.limit * JITTER / 2


@pytest.mark.parametrize("age", [Age(), Age(timedelta(seconds=2), timedelta(seconds=1))])
def test_a_connection_never_ends_before_its_session_was_asked_and_had_its_grace(age: Age) -> None:
    options = dict(age.options)
    assert options["grpc.max_connection_age_ms"] * 0.9 / 1000 >= (age.limit + 0.5 * age.grace).total_seconds()
    assert options["grpc.max_connection_age_grace_ms"] / 1000 == age.grace.total_seconds()
    assert BACKSTOP > 1
    assert Age(timedelta()).options == ()
    assert timedelta() < LONGEST_HINT < Age().grace
