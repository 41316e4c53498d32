"""What waits to be stored: in its order, bounded, and told of when it fails."""

import asyncio

import pytest

from hub.rpc.backlog import MOST, MOST_BYTES, Backlog


class Stage:
    """A backlog whose work waits until it is let."""

    def __init__(self) -> None:
        self.failed: list[Exception] = []
        self.done: list[int] = []
        self.allowed = asyncio.Semaphore(0)
        self.backlog = Backlog("test", self.failed.append)

    async def put(self, number: int, size: int = 1, failure: Exception | None = None) -> None:
        async def work() -> None:
            await self.allowed.acquire()
            if failure is not None:
                raise failure
            self.done.append(number)

        await self.backlog.put(work, size)

    def let(self, count: int) -> None:
        for _ in range(count):
            self.allowed.release()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("count", "size"), [(MOST, 1), (2, MOST_BYTES // 2), (1, 3 * MOST_BYTES)])
async def test_what_finds_no_room_waits_and_the_order_stays(count: int, size: int) -> None:
    stage = Stage()
    for number in range(count):
        await stage.put(number, size)
    more = asyncio.create_task(stage.put(count, size))
    await turns()
    assert not more.done()
    assert len(stage.backlog) == count
    stage.let(1)
    await more
    stage.let(count)
    await stage.backlog.done()
    assert stage.done == list(range(count + 1))


async def test_a_failure_is_told_and_what_comes_behind_it_is_dropped() -> None:
    stage, error = Stage(), ValueError("a defect")
    await stage.put(1, failure=error)
    await stage.put(2)
    stage.let(2)
    await stage.backlog.done()
    assert (stage.failed, stage.done, len(stage.backlog)) == ([error], [], 0)


async def test_what_is_ended_does_nothing_more() -> None:
    stage = Stage()
    await stage.put(1)
    await turns()
    stage.backlog.end()
    stage.let(1)
    await stage.backlog.done()
    assert (stage.failed, stage.done) == ([], [])
