"""What every store promises about the audit log, and every sink about what it keeps."""

from datetime import timedelta
from pathlib import Path

import pytest

from hub.api.auditrecords import STRANGERS, AuditEntry, AuditPosition, AuditQuery, Numbering
from hub.audit.sinks import FileSink, StoreSink
from hub.audit.trail import AuditSink
from hub.ports import Store
from hub.registry import auditrecords as audit
from machinery.errors import InvalidError, UnavailableError
from machinery.runtime.clock import ManualClock
from tests.fakes.audit_records import MemorySink, entries, record
from tests.fakes.databases import sqlite_database

SECOND = timedelta(seconds=1)


async def everything(store: Store) -> list[AuditEntry]:
    found, _ = await store.read(audit.find, AuditQuery())
    return list(found)


async def test_records_come_back_as_they_were_and_can_be_sent_again(store: Store, clock: ManualClock) -> None:
    kept = entries("a", *(record(at=clock.now() + number * SECOND) for number in range(5)))
    other = entries("b", record(at=clock.now() + 9 * SECOND))
    for part in (kept[:3], kept[1:], other, other):
        await store.run(audit.append, part)
    assert await everything(store) == [*kept, *other]


async def test_text_that_no_database_takes_is_kept_with_marks_in_its_place(store: Store, clock: ManualClock) -> None:
    strange = entries("a", record(at=clock.now(), user="a\x00\udcff", name="\x00", namespace="\x00", verb="\x00"))
    await store.run(audit.append, strange)
    found, _ = await store.read(audit.find, AuditQuery(equal=(("user", "a\ufffd\ufffd"), ("name", "\ufffd"))))
    assert list(found) == strange


async def test_records_are_found_by_what_they_say_in_the_order_of_time(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    mine = entries("b", record(at=now), record(at=now + 2 * SECOND, verb="delete", namespace="ns"), record(at=now + 3 * SECOND))
    others = entries("a", record(at=now + SECOND, user="bob"), record(at=now + 2 * SECOND, resource="leases", name="x"))
    await store.run(audit.append, mine)
    await store.run(audit.append, others)

    async def found(**query: object) -> list[AuditEntry]:
        chosen, _ = await store.read(audit.find, AuditQuery(**query))  # type: ignore[arg-type]
        return list(chosen)

    assert await found() == [mine[0], others[0], others[1], mine[1], mine[2]]
    assert await found(equal=(("user", "bob"),)) == [others[0]]
    assert await found(unequal=(("user", "ann"),)) == [others[0]]
    assert await found(equal=(("verb", "delete"), ("namespace", "ns"))) == [mine[1]]
    assert await found(equal=(("resource", "leases"), ("name", "x"))) == [others[1]]
    assert await found(since=now + 2 * SECOND, until=now + 2 * SECOND) == [others[1], mine[1]]
    assert await found(limit=2) == [mine[0], others[0], others[1]]
    assert await found(after=AuditPosition(others[1].at, others[1].replica, 2)) == [mine[1], mine[2]]


async def test_the_oldest_records_go_by_age_and_for_room_in_parts(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock.now()
    kept = entries("a", *(record(at=now + number * SECOND) for number in (0, 9, 1, 2)))
    strangers = [Numbering("z", STRANGERS).entry(record(at=now + number * SECOND)) for number in (0, 1)]
    await store.run(audit.append, [*kept, *strangers])
    refused, sizes = await store.read(audit.sizes)
    assert (refused, [(user, size.records, size.floor) for user, size in sizes.items()]) == (2, [("ann", 4, now)])
    clock.advance(timedelta(days=1) + SECOND)
    assert await store.run(audit.trim, timedelta(days=1)) == 2
    assert await everything(store) == [kept[2], strangers[1], kept[3], kept[1]]
    others = entries("b", record(at=now, user="bob"), record(at=now + 5 * SECOND, user="bob"))
    await store.run(audit.append, others)
    monkeypatch.setattr(audit, "SHORTENED_AT_ONCE", 2)
    gone = await store.run(audit.shorten, "ann", kept[2].at)
    assert (gone.records, gone.bytes, gone.floor) == (2, sizes["ann"].bytes // 2, kept[3].at)
    assert await everything(store) == [others[0], strangers[1], others[1], kept[1]]
    assert await store.run(audit.shorten_strangers, 9) == 1
    assert await everything(store) == [*others, kept[1]]


@pytest.mark.parametrize("kind", ["memory", "store", "file"])
async def test_records_are_kept_in_order_and_go_on_after_a_restart(kind: str, tmp_path: Path) -> None:
    path, memory, documents = tmp_path / "audit.log", MemorySink(), list[bytes]()
    async with sqlite_database(tmp_path).opened(None) as store:
        for number in (1, 3):
            sinks: dict[str, AuditSink] = {"memory": memory, "store": StoreSink(store, "here"), "file": FileSink(str(path))}
            sink = sinks[kind]
            await sink.open()
            written = [sink.numbering.entry(record(each)) for each in (number, number + 1)]
            await sink.write(written)
            documents += [entry.document for entry in written]
        kept = memory.entries if kind == "memory" else await everything(store)
    assert (path.read_bytes().splitlines() if kind == "file" else [entry.document for entry in kept]) == documents


async def test_a_line_that_a_crash_has_torn_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    sink = FileSink(str(path))
    await sink.open()
    await sink.write(entries("a", record(1), record(2)))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"level":"Meta')
    await FileSink(str(path)).open()
    assert path.read_bytes() == whole


async def test_a_file_that_is_no_audit_log_or_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    for name, content in (("a", b"dear diary"), ("b", b"dear diary\n")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InvalidError, match="name another file"):
            await FileSink(str(path)).open()
        assert path.read_bytes() == content
    with pytest.raises(InvalidError, match="cannot be written"):
        await FileSink(str(tmp_path / "missing" / "audit.log")).open()


async def test_a_file_that_was_rotated_is_made_again_and_a_failed_batch_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    sink = FileSink(str(path))
    written = entries("a", record(1), record(2))
    await sink.open()
    await sink.write(written[:1])
    path.rename(tmp_path / "audit.log.1")
    path.mkdir()
    with pytest.raises(UnavailableError, match="cannot be written"):
        await sink.write(written[1:])
    path.rmdir()
    await sink.write(written[1:])
    assert path.read_bytes() == written[1].document + b"\n"
    assert path.stat().st_mode & 0o777 == 0o600
