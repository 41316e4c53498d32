"""Seats, queues and rates: one identity cannot take a level, nobody waits for ever, and many refusals are told to come late."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from random import Random

import pytest

from machinery.apiserver.limits import MAX_IDENTITIES, Level, Openings, Pool, Pools, Pushback, Rates, origin
from machinery.clock import ManualClock
from machinery.errors import TooManyRequestsError

LONG, SHORT = timedelta(seconds=5), timedelta(milliseconds=20)


def pool(seats: int, *, queue: int = 100, each: int = 50) -> Pool:
    return Pool(Level("test", seats, queue, each), ManualClock())


@asynccontextmanager
async def waiting(room: Pool, *identities: str) -> AsyncIterator[list[str]]:
    """Identities that wait, in this order; the list says who was seated, in order."""
    seated: list[str] = []

    async def one(identity: str) -> None:
        await room.take(identity, LONG)
        seated.append(identity)

    tasks = []
    for identity in identities:
        tasks.append(asyncio.create_task(one(identity)))
        await asyncio.sleep(0)
    yield seated
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_seats_are_taken_until_there_are_none_and_the_next_waits_in_vain() -> None:
    room = pool(4)
    for identity in "aabb":
        await room.take(identity, LONG)
    with pytest.raises(TooManyRequestsError) as refused:
        await room.take("c", SHORT)
    assert refused.value.retry_after == timedelta(seconds=1)
    assert room.snapshot() | {"retry_after": 1} == {
        "seats": 4,
        "taken": 4,
        "waiting": 0,
        "identities": 2,
        "refused": 1,
        "retry_after": 1,
    }
    room.give("a")
    await room.take("c", SHORT)


async def test_an_identity_holds_no_more_than_half() -> None:
    room = pool(4)
    for _ in range(2):
        await room.take("noisy", LONG)
    with pytest.raises(TooManyRequestsError):
        await room.take("noisy", SHORT)
    for identity in ("a", "b"):
        await room.take(identity, SHORT)


async def test_free_seats_go_to_the_identities_in_turn() -> None:
    room = pool(4)
    for identity in "xxyy":
        await room.take(identity, LONG)
    async with waiting(room, "a", "a", "c", "d") as seated:
        for holder in "xxyy":
            room.give(holder)
            await settle()
        assert seated == ["a", "c", "d", "a"]


async def test_who_waits_for_his_own_share_holds_up_nobody() -> None:
    room = pool(4)
    for identity in ("noisy", "noisy", "a"):
        await room.take(identity, LONG)
    async with waiting(room, "noisy", "noisy") as seated:
        await room.take("b", SHORT)
        assert seated == []
        room.give("noisy")
        await settle()
        assert seated == ["noisy"]


async def test_queues_are_bounded_in_all_and_for_each_identity() -> None:
    room = pool(1, queue=3, each=2)
    await room.take("a", LONG)
    async with asyncio.timeout(2), waiting(room, "a", "a"):  # refused at once, not when the patience is over
        with pytest.raises(TooManyRequestsError):
            await room.take("a", LONG)
        async with waiting(room, "b"):
            with pytest.raises(TooManyRequestsError):
                await room.take("c", LONG)
    assert room.snapshot()["waiting"] == 0


async def test_without_seats_there_is_no_limit() -> None:
    room = pool(0)
    for _ in range(1_000):
        await room.take("a", SHORT)
    for _ in range(1_000):
        room.give("a")
    assert (room.snapshot()["seats"], room.snapshot()["taken"]) == ("unlimited", 0)


@pytest.mark.parametrize("seed", range(20))
async def test_no_seat_is_lost_whoever_gives_up_when(seed: int) -> None:
    random, room = Random(seed), pool(3, queue=8, each=4)
    over = 0

    async def visit(identity: str) -> None:
        nonlocal over
        try:
            await room.take(identity, timedelta(milliseconds=random.choice((0, 1, 3, 50))))
        except TooManyRequestsError:
            return
        try:
            over = max(over, room.snapshot()["taken"])
            await asyncio.sleep(random.choice((0, 0.001, 0.002)))
        finally:
            room.give(identity)

    tasks = [asyncio.create_task(visit(random.choice("abcd"))) for _ in range(200)]
    for task in random.sample(tasks, 40):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert over <= 3
    told = room.snapshot()
    assert (told["taken"], told["waiting"], told["identities"]) == (0, 0, 0)
    for identity in "abc":
        await room.take(identity, timedelta())


async def test_levels_do_not_take_each_others_room() -> None:
    levels = Pools((Level("one", 1), Level("two", 1)), ManualClock())
    await levels["one"].take("a", LONG)
    await levels["two"].take("a", SHORT)
    assert levels["one"].uid != levels["two"].uid
    assert set(levels.snapshot()) == {"one", "two"}


def refused(pushback: Pushback, count: int) -> float:
    return [pushback.refused().total_seconds() for _ in range(count)][-1]


def test_the_more_are_refused_the_later_they_are_to_return() -> None:
    clock = ManualClock()
    pushback = Pushback(clock)
    assert refused(pushback, 10) == 1
    for expected in (2, 4, 8, 16, 32, 32):
        clock.advance(timedelta(seconds=pushback.value))
        assert refused(pushback, 3 * 32) == expected
    clock.advance(timedelta(seconds=33))
    assert refused(pushback, 1) == 31
    clock.advance(timedelta(seconds=31))
    assert refused(pushback, 1) == 30


def test_a_bucket_holds_a_burst_and_fills_at_its_rate() -> None:
    clock = ManualClock()
    rates = Rates(2, 3, clock)
    for _ in range(3):
        rates.check("a")
    with pytest.raises(TooManyRequestsError) as refused_:
        rates.check("a")
    assert refused_.value.retry_after == timedelta(seconds=0.5)
    rates.check("b")
    clock.advance(timedelta(seconds=0.5))
    rates.check("a")
    with pytest.raises(TooManyRequestsError):
        rates.check("a")
    clock.advance(timedelta(hours=1))
    for _ in range(3):
        rates.check("a")
    with pytest.raises(TooManyRequestsError):
        rates.check("a")
    assert rates.snapshot() == {"rate": 2, "identities": 2, "refused": 3}


def test_buckets_are_bounded_and_a_rate_of_0_is_no_limit() -> None:
    rates = Rates(1, 1, ManualClock())
    for number in range(MAX_IDENTITIES + 10):
        rates.check(str(number))
    assert rates.snapshot()["identities"] == MAX_IDENTITIES
    unlimited = Rates(0, 1, ManualClock())
    for _ in range(10):
        unlimited.check("a")


@pytest.mark.parametrize(
    ("address", "counts_as"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unix", ""),
    ],
)
def test_a_host_counts_as_one_whatever_addresses_it_has(address: str, counts_as: str) -> None:
    assert origin(address) == counts_as


def test_of_what_stays_open_each_has_so_many_and_all_together_too() -> None:
    openings = Openings(2, 3)
    with openings.one("a"), openings.one("a"):
        with pytest.raises(TooManyRequestsError) as refused, openings.one("a"):
            pass
        assert refused.value.retry_after == timedelta(seconds=5)
        with openings.one("b"):
            with pytest.raises(TooManyRequestsError), openings.one("c"):
                pass
            with openings.one(""):
                assert openings.snapshot() == {"identities": 2, "open": 3, "refused": 2}
    assert openings.snapshot() == {"identities": 0, "open": 0, "refused": 2}
