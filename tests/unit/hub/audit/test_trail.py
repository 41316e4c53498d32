"""Audit records on their way, and what their chain shows of tampering, in a store and in a file."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec
from structlog.testing import capture_logs

from hub.audit.trail import LEFT_OUT, Trail
from hub.domain.audit import Record, Stage, read_record
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
    """What stands in the sink; each record has a place of its own."""
    assert len({(entry.replica, entry.sequence) for entry in sink.entries}) == len(sink.entries)
    found = [read_record(entry.document) for entry in sink.entries]
    return [each for each in found if each is not None]


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
    with capture_logs() as lines:
        async with running(sink) as trail:
            trail.offer(record(1))
            await trail.finish()
            assert trail.snapshot()["failures"] == 2
    assert kept(sink) == [record(1)]
    told = [line["event"] for line in lines]
    assert told[:2] == ["audit records cannot be written now", "audit records are written again"], "each of them once"
    sink = MemorySink()
    sink.broken = 4
    async with running(sink) as trail:
        for each in (record(1), record(2)):
            trail.offer(each)
        await trail.finish()
    assert kept(sink) == [record(1), record(2)], "a place that takes nothing is no reason to leave records out"


async def test_what_finds_no_room_is_counted_where_it_is_missing() -> None:
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


async def test_a_record_that_cannot_be_written_is_left_out_alone_and_a_record_says_so() -> None:
    unwritable = msgspec.structs.replace(record(2), annotations={"a": object()})
    for wrong, refused in ((unwritable, ""), (record(2, user="mallory"), "mallory")):
        sink = MemorySink()
        sink.refused = refused
        async with running(sink) as trail:
            for each in (record(1), wrong, record(3)):
                trail.offer(each)
            await trail.finish()
            assert trail.snapshot()["written"] == 3
        first, second, third = kept(sink)
        assert (first, third) == (record(1), record(3))
        assert LEFT_OUT in second.annotations
        assert second.at == record(2).at
