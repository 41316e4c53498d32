"""`hub audit verify` over a store and over a file."""

from datetime import timedelta

import pytest

from hub.audit.lines import line_of, link_of
from hub.audit.verify import breaches, noted_form, parse_noted, verify_lines, verify_store
from hub.domain.audit import Dropped, Level, Record, Stage
from hub.services import audit
from machinery.clock import ManualClock
from machinery.errors import InvalidError
from tests.fakes.audit_records import EPOCH, chain, record
from tests.fakes.memory_store import MemoryStore

LINKS = chain("a", *(record(number) for number in range(2_500)))


async def test_all_chains_of_a_store_are_read_to_their_ends(store: MemoryStore) -> None:
    await store.run(audit.append, LINKS)
    await store.run(audit.append, chain("b", record(1)))
    reports = await verify_store(store, {})
    assert [(report.verification.replica, report.verification.count) for report in reports] == [("a", 2_500), ("b", 1)]
    assert list(breaches(reports)) == []
    assert f"head {noted_form('a', LINKS[-1].head)}" in str(reports[0])
    del store.state.links["a", 1_200]
    assert [breach.sequence for breach in breaches(await verify_store(store, {}))] == [1_201]


async def test_a_trimmed_chain_is_intact(store: MemoryStore, clock: ManualClock) -> None:
    await store.run(audit.append, LINKS)
    clock.advance(timedelta(seconds=1_000))
    assert await store.run(audit.trim, timedelta()) == 1_000
    reports = await verify_store(store, {})
    assert list(breaches(reports)) == []
    assert "1000 older ones removed by age" in str(reports[0])


async def test_a_drop_does_not_read_as_tampering(store: MemoryStore) -> None:
    gap = Record(level=Level.METADATA, stage=Stage.DROPPED, at=EPOCH, dropped=Dropped(7, EPOCH, EPOCH))
    await store.run(audit.append, chain("a", record(1), gap, record(2)))
    (report,) = await verify_store(store, {})
    assert report.breaches == []
    assert "7 records dropped for want of room" in str(report)


async def test_a_noted_head_must_be_there(store: MemoryStore) -> None:
    await store.run(audit.append, LINKS[:10])
    noted = parse_noted([noted_form("a", LINKS[9].head)])
    assert list(breaches(await verify_store(store, noted))) == []
    del store.state.links["a", 10]
    assert [breach.sequence for breach in breaches(await verify_store(store, noted))] == [10]
    store.state.links.clear()
    assert [breach.sequence for breach in breaches(await verify_store(store, noted))] == [10]


@pytest.mark.parametrize("note", ["", "a", "a:1", "a:0:" + "0" * 64, "a:1:xyz"])
def test_a_note_that_is_no_link_is_refused(note: str) -> None:
    with pytest.raises(InvalidError, match="REPLICA:SEQUENCE:HASH"):
        parse_noted([note])


def test_lines_are_read_back_as_they_were_written() -> None:
    assert [link_of(line_of(link)) for link in LINKS[:3]] == LINKS[:3]
    assert link_of(line_of(LINKS[0])[:-20]) is None
    assert link_of(b"hello\n") is None


def test_a_file_is_verified_from_wherever_it_begins() -> None:
    lines = [line_of(link) for link in LINKS[5:20]]
    assert list(breaches(verify_lines(lines, {}))) == []
    assert [breach.sequence for breach in breaches(verify_lines(lines[:3] + lines[4:], {}))] == [10]
    touched = lines[3].replace(b'"ann"', b'"bob"')
    assert [breach.sequence for breach in breaches(verify_lines([*lines[:3], touched, *lines[4:]], {}))] == [9]
    assert [breach.what for breach in breaches(verify_lines([*lines, b"torn"], {}))] == [
        "line 16 of the file is no record, or was changed"
    ]
    assert list(breaches(verify_lines(lines[:2], parse_noted([noted_form("a", LINKS[10].head)]))))
