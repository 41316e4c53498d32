"""Records on their way: all arrive once and in order, none waits, and what found no room is told in the chain."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from hub.audit.trail import Trail
from hub.domain.audit import Record, Stage, read_record
from hub.domain.chain import Verification
from machinery.clock import ManualClock
from machinery.tasks import GuardedTasks
from tests.fakes.audit_records import MemorySink, record
from tests.fakes.stage import until

SOON = timedelta(milliseconds=5)


@asynccontextmanager
async def running(
    sink: MemorySink, *, capacity: int = 10_000, batch: int = 400, window: timedelta = SOON
) -> AsyncIterator[Trail]:
    trail = Trail(sink, ManualClock(), capacity=capacity, batch=batch, window=window)
    await trail.open()
    async with asyncio.timeout(10), GuardedTasks("test") as tasks:
        tasks.start("trail", trail.run())
        yield trail


def kept(sink: MemorySink) -> list[Record]:
    """What stands in the sink; the chain holds."""
    chain = Verification(sink.links[0].replica if sink.links else "memory")
    assert [breach for link in sink.links for breach in chain.take(link)] == []
    found = [read_record(link.document) for link in sink.links]
    return [each for each in found if each is not None]


async def test_every_record_arrives_once_in_the_order_of_the_offers() -> None:
    sink, offered = MemorySink(), [record(number) for number in range(1_000)]
    async with running(sink, batch=64) as trail:
        for each in offered:
            trail.offer(each)
        await trail.finish()
    assert kept(sink) == offered
    assert max(sink.batches) <= 64


async def test_records_that_come_together_are_written_together_and_a_flush_waits_for_no_window() -> None:
    sink = MemorySink()
    async with running(sink, window=timedelta(seconds=60)) as trail:
        for number in range(50):
            trail.offer(record(number))
            await asyncio.sleep(0)
        await trail.finish()
    assert sink.batches == [50]


async def test_finish_waits_for_a_slow_place() -> None:
    sink = MemorySink()
    async with running(sink) as trail:
        sink.gate.clear()
        trail.offer(record(1))
        finishing = asyncio.create_task(trail.finish())
        await until(lambda: sink.asked)
        assert not finishing.done()
        trail.offer(record(2))  # answered during the stop: still taken
        sink.gate.set()
        await finishing
        trail.offer(record(3))  # too late, and no crash
        assert trail.snapshot()["late"] == 1
    assert kept(sink) == [record(1), record(2)]


async def test_a_place_that_fails_gets_the_same_links_again() -> None:
    sink = MemorySink()
    sink.failing = 2
    async with running(sink) as trail:
        trail.offer(record(1))
        await trail.finish()
        assert trail.snapshot()["failures"] == 2
    assert kept(sink) == [record(1)]


async def test_what_finds_no_room_is_counted_in_the_chain_where_it_is_missing() -> None:
    sink = MemorySink()
    async with running(sink, capacity=3) as trail:
        sink.gate.clear()
        trail.offer(record(0))
        await until(lambda: sink.asked)  # on its way, and stuck
        for number in range(1, 8):
            trail.offer(record(number))
        assert trail.snapshot()["dropped"] == 4
        sink.gate.set()
        await until(lambda: not trail.snapshot()["waiting"])
        trail.offer(record(8))
        await trail.finish()
    found = kept(sink)
    assert [each.audit_id for each in found] == ["id-0", "id-1", "id-2", "id-3", "", "id-8"]
    assert found[4].stage is Stage.DROPPED
    assert found[4].dropped is not None
    assert found[4].dropped.count == 4


async def test_a_chain_that_others_write_is_left_to_them() -> None:
    sink = MemorySink()
    async with running(sink) as trail:
        trail.offer(record(0))
        await until(lambda: sink.links)
        sink.thief, first = True, sink.links[0]
        for number in (1, 2):
            trail.offer(record(number))
        await trail.finish()
    assert first.replica == "memory"
    assert {link.replica for link in sink.links[1:]} == {sink.replica} != {"memory"}
    sink.links = sink.links[1:]
    assert kept(sink) == [record(1), record(2)]


async def test_a_chain_goes_on_where_it_ended_after_a_restart() -> None:
    sink = MemorySink()
    for number in range(3):
        async with running(sink) as trail:
            trail.offer(record(number))
            await trail.finish()
    assert kept(sink) == [record(0), record(1), record(2)]
