"""Audit records on their way, and what their chain shows of tampering, in a store and in a file."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from sqlalchemy import delete
from structlog.testing import capture_logs

from hub.audit.lines import line_of, link_of
from hub.audit.trail import LEFT_OUT, Trail
from hub.audit.verify import breaches, noted_form, parse_noted, verify_lines, verify_store
from hub.domain.audit import Dropped, Fields, Level, Record, Stage, read_record
from hub.domain.chain import Breach, Head, Link, Verification, link_hash, linked, named
from hub.services import audit
from hub.store import schema
from machinery.clock import ManualClock
from machinery.errors import InvalidError
from machinery.tasks import GuardedTasks
from tests.fakes.audit_records import EPOCH, MemorySink, chain, record
from tests.fakes.inline_store import InlineStore
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


TEN = chain("a", *(record(number) for number in range(10)))


def found_in(verification: Verification, links: Iterable[Link]) -> list[Breach]:
    found = [breach for link in links for breach in verification.take(link)]
    return [*found, *verification.end()]


def edited(link: Link, number: int) -> Link:
    other = linked("a", Head(link.sequence - 1, link.previous), record(number, user="mallory"))
    return replace(link, document=other.document, fields=other.fields, at=other.at)


def rehashed(link: Link) -> Link:
    return replace(link, hash=link_hash(link.replica, link.sequence, link.previous, link.document))


def swapped(first: Link, second: Link) -> tuple[Link, Link]:
    return (
        replace(second, sequence=first.sequence, previous=first.previous, hash=first.hash),
        replace(first, sequence=second.sequence, previous=second.previous, hash=second.hash),
    )


ELSE = Fields("bob", "create", "managedclusters", "", "edge")
TAMPERED: dict[str, tuple[Sequence[Link], int, str]] = {
    "a changed record": ([*TEN[:4], edited(TEN[4], 4), *TEN[5:]], 5, "was changed"),
    "a changed record with its hash": ([*TEN[:4], rehashed(edited(TEN[4], 4)), *TEN[5:]], 6, "does not continue"),
    "a removed record": ([*TEN[:4], *TEN[5:]], 6, "links 5 to 5 before it are missing"),
    "a removed stretch": ([*TEN[:2], *TEN[8:]], 9, "links 3 to 8 before it are missing"),
    "a removed beginning": (TEN[3:], 4, "links 1 to 3 before it are missing"),
    "reordered records": ([*TEN[:4], TEN[5], TEN[4], *TEN[6:]], 6, "links 5 to 5 before it are missing"),
    "two records that changed places": ([*TEN[:4], *swapped(TEN[4], TEN[5]), *TEN[6:]], 5, "was changed"),
    "a record with another name": ([*TEN[:4], replace(TEN[4], fields=ELSE), *TEN[5:]], 5, "what it is found by"),
    "a record at another time": ([*TEN[:4], replace(TEN[4], at=EPOCH), *TEN[5:]], 5, "what it is found by"),
    "a record that is none": ([*TEN[:4], rehashed(replace(TEN[4], document=b"{}")), *TEN[5:]], 5, "was changed"),
    "another chain's record": ([*TEN[:4], *chain("b", record(4), after=TEN[3].head), *TEN[5:]], 6, "does not"),
}


def test_tampering_shows_where_it_was_done_and_a_cut_by_a_noted_head() -> None:
    verification = Verification("a")
    assert found_in(verification, TEN) == []
    assert (verification.count, verification.head) == (10, TEN[-1].head)
    for what, (links, where, words) in TAMPERED.items():
        found = found_in(Verification("a"), links)
        assert found, what
        assert (found[0].sequence, words in found[0].what) == (where, True), what
    touched = [*TEN[:2], *TEN[3:7], edited(TEN[7], 7), *TEN[8:]]
    assert [breach.sequence for breach in found_in(Verification("a"), touched)] == [4, 8], "each is reported once"
    anew = chain("a", *(record(number, user="mallory" if number == 3 else "ann") for number in range(10)))
    noted = {8: TEN[7].hash}
    for links in (TEN[:6], anew):
        assert found_in(Verification("a"), links) == []
        assert [breach.sequence for breach in found_in(Verification("a", expected=noted), links)] == [8]
    assert found_in(Verification("a", expected=noted), TEN) == []
    assert found_in(Verification("a", TEN[3].head), TEN[4:]) == []
    assert found_in(Verification("a", TEN[3].head, expected={2: TEN[1].hash}), TEN[4:]) == []
    assert found_in(Verification("a", TEN[3].head), TEN[5:])
    assert found_in(Verification("a", Head(4, TEN[4].hash)), TEN[4:])
    assert found_in(Verification("a", part=True), TEN[5:]) == []
    assert found_in(Verification("a", part=True), [*TEN[5:7], *TEN[8:]])
    names = [named(link.at, link.replica, link.sequence) for link in TEN]
    assert names == sorted(names)
    assert names[1] == "20260101t000001.000000z-a-000000000002"


LINKS = chain("a", *(record(number) for number in range(2_500)))


async def test_all_chains_of_a_store_are_read_to_their_ends(store: InlineStore, clock: ManualClock) -> None:
    await store.run(audit.append, LINKS)
    await store.run(audit.append, chain("b", record(1)))
    reports = await verify_store(store, {})
    assert [(report.verification.replica, report.verification.count) for report in reports] == [("a", 2_500), ("b", 1)]
    assert list(breaches(reports)) == []
    assert f"head {noted_form('a', LINKS[-1].head)}" in str(reports[0])
    clock.advance(timedelta(seconds=1_000))
    assert await store.run(audit.trim, timedelta()) == 1_001
    reports = await verify_store(store, {})
    assert list(breaches(reports)) == []
    assert "1000 older ones removed by age" in str(reports[0])
    store.execute(delete(schema.audit).where(schema.audit.c.sequence == 1_200))
    assert [breach.sequence for breach in breaches(await verify_store(store, {}))] == [1_201]


async def test_a_noted_head_must_be_there_and_a_drop_does_not_read_as_tampering(store: InlineStore) -> None:
    gap = Record(level=Level.METADATA, stage=Stage.DROPPED, at=EPOCH, dropped=Dropped(7, EPOCH, EPOCH))
    await store.run(audit.append, chain("gap", record(1), gap, record(2)))
    (report,) = await verify_store(store, {})
    assert report.breaches == []
    assert "7 records dropped for want of room" in str(report)
    await store.run(audit.append, LINKS[:10])
    noted = parse_noted([noted_form("a", LINKS[9].head)])
    assert list(breaches(await verify_store(store, noted))) == []
    store.execute(delete(schema.audit).where(schema.audit.c.replica == "a", schema.audit.c.sequence == 10))
    assert [breach.sequence for breach in breaches(await verify_store(store, noted))] == [10]
    store.execute(delete(schema.audit))
    assert [breach.sequence for breach in breaches(await verify_store(store, noted))] == [10]
    for note in ("", "a", "a:1", "a:0:" + "0" * 64, "a:1:xyz"):
        with pytest.raises(InvalidError, match="REPLICA:SEQUENCE:HASH"):
            parse_noted([note])


def test_a_file_is_verified_line_by_line_from_where_it_begins() -> None:
    assert [link_of(line_of(link)) for link in LINKS[:3]] == LINKS[:3]
    assert link_of(line_of(LINKS[0])[:-20]) is None
    assert link_of(b"hello\n") is None
    lines = [line_of(link) for link in LINKS[5:20]]
    assert list(breaches(verify_lines(lines, {}))) == []
    assert [breach.sequence for breach in breaches(verify_lines(lines[:3] + lines[4:], {}))] == [10]
    touched = lines[3].replace(b'"ann"', b'"bob"')
    assert [breach.sequence for breach in breaches(verify_lines([*lines[:3], touched, *lines[4:]], {}))] == [9]
    assert [breach.what for breach in breaches(verify_lines([*lines, b"torn"], {}))] == [
        "line 16 of the file is no record, or was changed"
    ]
    assert list(breaches(verify_lines(lines[:2], parse_noted([noted_form("a", LINKS[10].head)]))))
