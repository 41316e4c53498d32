"""Seats, queues, rates and body sizes: one identity cannot take a level, and no input costs much more than reading it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

import pytest

from machinery.apiserver.http import limits
from machinery.apiserver.write.bodies import MOST_APPLIED, _load_json
from machinery.apiserver.write.patches import MAX_OPERATIONS, apply_json_patch, apply_strategic_patch
from machinery.apiserver.write.schema import violations
from machinery.apiserver.write.writes import FEW, check_size
from machinery.errors import TooLargeError, TooManyRequestsError
from machinery.runtime.clock import ManualClock
from machinery.runtime.congestion import EACH_TURN, LONG_TURN, Congestion
from tests.checks import awaited_refusal, check_refusal, check_refusal_of, present, refusal, within_steps
from tests.fakes.virtual_time import VirtualLoop, in_the_loops_time, in_virtual_time

LONG, SHORT = timedelta(seconds=5), timedelta(milliseconds=20)


def pool(seats: int, *, queue: int = 100, each: int = 50) -> limits.Pool:
    return limits.Pool(limits.PriorityLevel("test", seats, queue, each), ManualClock())


@asynccontextmanager
async def waiting(room: limits.Pool, *identities: str) -> AsyncIterator[list[str]]:
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


def test_pool_refuses_when_seats_and_queues_are_full() -> None:
    in_virtual_time(full_pool())


async def full_pool() -> None:
    room = pool(4)
    for identity in "aabb":
        await room.take(identity, LONG)
    assert present(await awaited_refusal(TooManyRequestsError, room.take("c", SHORT))).retry_after == timedelta(seconds=1)
    counted = {"seats": 4, "taken": 4, "waiting": 0, "identities": 2, "refused": 1}
    assert room.snapshot() | {"retry_after": 1} == {**counted, "retry_after": 1}
    room.give("a")
    await room.take("c", SHORT)

    room = pool(1, queue=3, each=2)
    await room.take("a", LONG)
    began = asyncio.get_running_loop().time()
    async with waiting(room, "a", "a"):
        await check_refusal_of(TooManyRequestsError, room.take("a", LONG))
        async with waiting(room, "b"):
            await check_refusal_of(TooManyRequestsError, room.take("c", LONG))
    assert asyncio.get_running_loop().time() == began, "a full queue refuses at once, not when the patience is over"
    assert room.snapshot()["waiting"] == 0

    room = pool(0)
    for _ in range(1_000):
        await room.take("a", SHORT)
    for _ in range(1_000):
        room.give("a")
    assert (room.snapshot()["seats"], room.snapshot()["taken"]) == ("unlimited", 0)

    one, two = (limits.Pool(limits.PriorityLevel(name, 1), ManualClock()) for name in ("one", "two"))
    assert one.uid != two.uid


def test_level_that_yields_begins_little_per_turn_and_nothing_after_a_long_turn() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        runner.run(turns(loop))


async def turns(loop: VirtualLoop) -> None:
    congestion = Congestion()
    starts, reports = (limits.Pool(limits.PriorityLevel(name, 40, yields=True), ManualClock(), congestion) for name in "ab")
    beats = limits.Pool(limits.PriorityLevel("c", 40), ManualClock(), congestion)
    taken = [0]
    async with asyncio.TaskGroup() as group:
        for identity in range(25):
            group.create_task(starts.take(str(identity), LONG))
        while starts.snapshot()["taken"] < 25:
            await asyncio.sleep(0)
            taken.append(starts.snapshot()["taken"])
            assert taken[-1] - taken[-2] <= EACH_TURN, "all that begins in one turn delays what comes after it"

        await starts.take("before", LONG)
        loop.stand_still(2 * LONG_TURN)
        waits = [group.create_task(pool.take("late", LONG)) for pool in (starts, reports)]
        await beats.take("beat", SHORT)
        await asyncio.sleep(0)
        assert [pool.snapshot()["waiting"] for pool in (starts, reports)] == [1, 1], "nothing begins after a long turn"
        assert not any(wait.done() for wait in waits)
        began = loop.time()
    assert loop.time() == began, "what waits begins after the next short turn"

    shared = limits.Pool(limits.PriorityLevel("shared", 2, yields=True), ManualClock(), Congestion())
    await shared.take("a", LONG)
    with pytest.raises(TooManyRequestsError):  # the virtual loop ends with an error if an identity without room keeps it busy
        await shared.take("a", LONG)


@in_the_loops_time
async def test_calls_that_wait_for_a_turn_begin_newest_first_and_give_up_in_time() -> None:
    loop, congestion, begun = asyncio.get_running_loop(), Congestion(), list[int]()
    assert isinstance(loop, VirtualLoop)

    async def call(number: int) -> None:
        await congestion.turn(SHORT)
        begun.append(number)

    loop.create_task(congestion.turn(SHORT))
    await asyncio.sleep(0)
    loop.stand_still(2 * LONG_TURN)
    async with asyncio.TaskGroup() as group:
        for number in range(EACH_TURN + 2):
            group.create_task(call(number))
    assert sorted(begun[EACH_TURN:]) == [0, 1], "the oldest callers have most likely given up"

    def busy() -> None:
        loop.stand_still(2 * LONG_TURN)
        if loop.time() < 1:
            loop.call_soon(busy)

    loop.call_soon(busy)
    with pytest.raises(TimeoutError):
        while loop.time() < 1:
            await congestion.turn(SHORT)
    assert len(congestion) == 0


@in_the_loops_time
async def test_nothing_begins_while_what_has_begun_waits_elsewhere() -> None:
    loop, delays = asyncio.get_running_loop(), [1.0]
    loop.call_later(0.5, delays.__setitem__, 0, 0.0)
    patient = Congestion(lambda: delays[0])
    patient.admit()
    await asyncio.sleep(0)
    await patient.turn(LONG)
    assert 0.5 <= loop.time() < 0.6, "and the loop is not kept busy meanwhile"


async def test_identity_holds_at_most_half_and_free_seats_go_round() -> None:
    room = pool(4)
    for _ in range(2):
        await room.take("noisy", LONG)
    await check_refusal_of(TooManyRequestsError, room.take("noisy", SHORT))
    for identity in ("a", "b"):
        await room.take(identity, SHORT)

    room = pool(4)
    for identity in "xxyy":
        await room.take(identity, LONG)
    async with waiting(room, "a", "a", "c", "d") as seated:
        for holder in "xxyy":
            room.give(holder)
            await settle()
        assert seated == ["a", "c", "d", "a"]

    room = pool(4)
    for identity in ("noisy", "noisy", "a"):
        await room.take(identity, LONG)
    async with waiting(room, "noisy", "noisy") as seated:
        await room.take("b", SHORT)
        assert seated == []
        room.give("noisy")
        await settle()
        assert seated == ["noisy"]


async def crowd(random: Random) -> None:
    room, over = pool(3, queue=8, each=4), 0

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
    end = room.snapshot()
    assert (end["taken"], end["waiting"], end["identities"]) == (0, 0, 0)
    for identity in "abc":
        await room.take(identity, timedelta())


def test_no_seat_is_lost_whenever_a_waiting_request_is_given_up() -> None:
    for seed in range(20):
        in_virtual_time(crowd(Random(seed)))


def refused(pushback: limits.Pushback, count: int) -> float:
    return [pushback.refused().total_seconds() for _ in range(count)][-1]


def test_the_more_are_refused_the_later_they_are_to_return() -> None:
    clock = ManualClock()
    pushback = limits.Pushback(clock)
    assert refused(pushback, 10) == 1
    for expected in (2, 4, 8, 16, 32, 32):
        clock.advance(timedelta(seconds=pushback.value))
        assert refused(pushback, 3 * 32) == expected
    clock.advance(timedelta(seconds=33))
    assert refused(pushback, 1) == 31
    clock.advance(timedelta(seconds=31))
    assert refused(pushback, 1) == 30


def test_rate_buckets_hold_a_burst_and_are_bounded() -> None:
    clock = ManualClock()
    rates = limits.Rates(2, 3, clock)
    for _ in range(3):
        rates.check("a")
    assert present(refusal(TooManyRequestsError, rates.check, "a")).retry_after == timedelta(seconds=0.5)
    rates.check("b")
    clock.advance(timedelta(seconds=0.5))
    rates.check("a")
    check_refusal(TooManyRequestsError, rates.check, "a")
    clock.advance(timedelta(hours=1))
    for _ in range(3):
        rates.check("a")
    check_refusal(TooManyRequestsError, rates.check, "a")
    assert rates.snapshot() == {"rate": 2, "identities": 2, "refused": 3}

    rates = limits.Rates(1, 1, ManualClock())
    for number in range(limits.MAX_IDENTITIES + 10):
        rates.check(str(number))
    assert rates.snapshot()["identities"] == limits.MAX_IDENTITIES
    unlimited = limits.Rates(0, 1, ManualClock())
    for _ in range(10):
        unlimited.check("a")


def test_requests_of_a_host_are_bounded_per_identity_and_in_all() -> None:
    mapped = {"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "fe80::1%eth0": "fe80::/64", "": "", "unix": ""}
    mapped |= dict.fromkeys(("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::1"), "2001:db8:1:2::/64")
    assert {address: limits.origin(address) for address in mapped} == mapped

    openings = limits.Openings(2, 3)
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


MANY = 5_000


def entries(count: int, key: str) -> list[dict[str, str]]:
    return [{key: f"k{number}"} for number in range(count)]


def test_json_patch_operations_are_bounded_in_what_they_cost() -> None:
    steps = 400 * MAX_OPERATIONS
    document = {"status": {"numbers": [0] * 300_000, "one": 1}}
    tests = [{"op": "test", "path": "/status/one", "value": 1}] * MAX_OPERATIONS
    assert within_steps(steps, lambda: apply_json_patch(document, tests)) == document
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}
    rows: list[tuple[Any, dict[str, Any]]] = [
        ({"a": [0] * 300_000}, {"op": "move", "from": "/a/0", "path": "/a/-"}),
        ({"a": [0] * 300_000}, {"op": "add", "path": "/a/0", "value": 1}),
        ({"a": ["x" * 100_000]}, {"op": "copy", "from": "/a", "path": "/b"}),
        ({"a": [[]] * 1_000}, {"op": "copy", "from": "/a", "path": "/b"}),
        (deep, {"op": "test", "path": "/a" * 200, "value": 1}),
    ]
    for document, operation in rows:
        check_refusal(TooLargeError, within_steps, steps, partial(apply_json_patch, document, [operation] * MAX_OPERATIONS))

    with pytest.raises(Exception, match="unexpected operation kind: append"):
        apply_json_patch({"a": "x"}, [{"op": "append", "path": "/a", "value": "y"}])

    operations = [{"op": "add", "path": "/a", "value": {"b": []}}, {"op": "add", "path": "/a/b/-", "value": 1}]
    assert [apply_json_patch({}, operations) for _ in range(2)] == [{"a": {"b": [1]}}] * 2


def test_long_lists_are_merged_and_checked_in_one_walk() -> None:
    document = {"metadata": {"ownerReferences": entries(MANY, "uid")}}
    patch = {"metadata": {"ownerReferences": [{"uid": f"k{number}", "kind": "x"} for number in range(MANY // 2, 2 * MANY)]}}
    merged = within_steps(100 * MANY, lambda: apply_strategic_patch(document, patch, {}))["metadata"]["ownerReferences"]
    assert ([each["uid"] for each in merged], merged[0]) == ([f"k{number}" for number in range(2 * MANY)], {"uid": "k0"})
    assert merged[-1] == {"uid": f"k{2 * MANY - 1}", "kind": "x"}

    names = [f"f/{number}" for number in range(MANY)]
    for key, value, left in (
        ("finalizers", [*reversed(names), "new"], [*names, "new"]),
        ("$deleteFromPrimitiveList/finalizers", names[1:], names[:1]),
    ):
        named = partial(apply_strategic_patch, {"metadata": {"finalizers": names}}, {"metadata": {key: value}}, {})
        assert within_steps(20 * MANY, named)["metadata"]["finalizers"] == left

    each = {"type": "object", "properties": {"type": {"type": "string"}}}
    listed = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"], "items": each}
    schema = {"type": "object", "properties": {"conditions": listed}}
    listing = {"conditions": [*entries(MANY, "type"), {"type": "k7"}]}
    (cause,) = within_steps(200 * MANY, lambda: violations(schema, listing))
    assert (cause.field, cause.message) == (f"conditions[{MANY}]", 'Duplicate value: {"type":"k7"}')

    body = "{" + ",".join(f'"k{number}":1' for number in range(MOST_APPLIED - 5)) + ',"k1":2,"k1":3}'
    duplicates: list[str] = []
    assert within_steps(20 * MOST_APPLIED, lambda: _load_json(body.encode(), duplicates)) == json.loads(body)
    assert set(duplicates) == {'duplicate field "k1"'}


def test_object_size_is_bounded_and_oversized_objects_may_only_shrink() -> None:
    check_size({"a": "x" * (limits.OBJECT_LIMIT - 100)})
    assert limits.OBJECT_LIMIT < limits.BODY_LIMIT
    check_refusal(TooLargeError, check_size, {"a": "x" * limits.OBJECT_LIMIT}, match="at most 1572864 are stored")

    above, larger = limits.OBJECT_LIMIT + 1, limits.OBJECT_CEILING + 5 * FEW
    for before, most in ((above, above + FEW), (limits.OBJECT_CEILING - 1, limits.OBJECT_CEILING), (larger, larger)):
        check_size(of_size(most), of_size(before))
        check_refusal(TooLargeError, check_size, of_size(most + 1), of_size(before))
    check_size(of_size(larger - FEW), of_size(larger))


def of_size(size: int) -> dict[str, Any]:
    return {"a": "x" * (size - len('{"a":""}'))}
