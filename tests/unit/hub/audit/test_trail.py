"""Records on their way: all arrive once and in order, none waits, and what found no room is told in the chain."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
from structlog.testing import capture_logs

from hub.audit.trail import LEFT_OUT, Trail
from hub.domain.audit import ObjectReference, Record, ResponseStatus, Stage, User, read_record
from hub.domain.chain import Verification
from machinery.clock import ManualClock
from machinery.tasks import GuardedTasks
from tests.fakes.audit_records import MemorySink, record
from tests.fakes.stage import until

SOON = timedelta(milliseconds=5)
TEXTS = (
    *("audit_id", "request_uri", "verb", "user", "impersonated_user", "source_ips", "user_agent", "object_ref"),
    *("response_status", "annotations"),
)


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


async def test_every_record_arrives_once_and_in_order_across_restarts() -> None:
    sink, offered = MemorySink(), [record(number) for number in range(1_000)]
    for part in (offered[:900], offered[900:950], offered[950:]):
        async with running(sink, batch=64) as trail:
            for each in part:
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


STRANGE = "a\udcff\x00b"


def strange_record(field: str) -> Record:
    """A record with text in one of its fields that cannot be encoded and has a NUL."""
    user = User(STRANGE, STRANGE, (STRANGE,), {STRANGE: (STRANGE,)})
    reference = ObjectReference(*(STRANGE for _ in ObjectReference.__struct_fields__))
    values: dict[str, Any] = {
        "user": user,
        "impersonated_user": user,
        "object_ref": reference,
        "response_status": ResponseStatus(400, STRANGE),
        "annotations": {STRANGE: STRANGE},
        "source_ips": (STRANGE,),
    }
    return msgspec.structs.replace(record(1), **{field: values.get(field, STRANGE)})


async def test_text_that_cannot_be_encoded_is_kept_with_marks_in_its_place() -> None:
    sink = MemorySink()
    async with running(sink) as trail:
        for field in TEXTS:
            trail.offer(strange_record(field))
        trail.offer(record(2))
        await trail.finish()
    *strange, plain = kept(sink)
    assert plain == record(2)
    marked = [field for field, each in zip(TEXTS, strange, strict=True) if "a\ufffd\ufffdb" in repr(getattr(each, field))]
    assert marked == list(TEXTS)
    assert "\\x00" not in repr([link.fields for link in sink.links])


async def test_a_record_that_cannot_be_written_is_left_out_alone_and_the_chain_says_so() -> None:
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
