"""What every store promises about the audit log, and every sink about the chain that it keeps."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from hub.audit.filesink import FileSink
from hub.audit.lines import link_of
from hub.audit.storesink import StoreSink
from hub.audit.trail import Sink
from hub.domain.chain import AuditQuery, Head, Link, Place
from hub.ports import Store
from hub.services import audit
from machinery.clock import ManualClock
from machinery.errors import AlreadyExistsError, InvalidError, UnavailableError
from tests.fakes.audit_records import MemorySink, chain, record
from tests.fakes.databases import sqlite_database

SECOND = timedelta(seconds=1)


async def test_links_come_back_as_they_were(store: Store, clock: ManualClock) -> None:
    links = chain("a", *(record(at=clock.now() + number * SECOND) for number in range(5)))
    await store.run(audit.append, links[:3])
    await store.run(audit.append, links[3:])
    await store.run(audit.append, chain("b", record(at=clock.now())))
    assert await store.read(lambda tx: list(tx.audit.links("a", after=0, limit=10))) == links
    assert await store.read(lambda tx: list(tx.audit.links("a", after=2, limit=2))) == links[2:4]
    assert await store.read(audit.head, "a") == links[-1].head
    assert await store.read(audit.head, "nobody") == Head()
    assert await store.read(audit.chains) == {"a": Head(), "b": Head()}


async def test_links_can_be_sent_again_and_two_writers_of_one_chain_never_mix(store: Store, clock: ManualClock) -> None:
    links = chain("a", record(at=clock.now()), record(at=clock.now()))
    for _ in range(2):
        await store.run(audit.append, links)
    for late in (
        chain("a", record(at=clock.now(), user="bob")),
        chain("a", record(at=clock.now()), record(at=clock.now(), user="x")),
    ):
        with pytest.raises(AlreadyExistsError):
            await store.run(audit.append, late)
    assert await store.read(lambda tx: list(tx.audit.links("a", after=0, limit=10))) == links


async def test_text_that_no_database_takes_is_kept_with_marks_in_its_place(store: Store, clock: ManualClock) -> None:
    strange = chain("a", record(at=clock.now(), user="a\x00\udcff", name="\x00", namespace="\x00", verb="\x00"))
    await store.run(audit.append, strange)
    found, _ = await store.read(audit.find, AuditQuery(equal=(("user", "a\ufffd\ufffd"), ("name", "\ufffd"))))
    assert list(found) == strange


async def test_records_are_found_by_what_they_say_in_the_order_of_time(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    mine = chain("b", record(at=now), record(at=now + 2 * SECOND, verb="delete", namespace="ns"), record(at=now + 3 * SECOND))
    others = chain("a", record(at=now + SECOND, user="bob"), record(at=now + 2 * SECOND, resource="leases", name="x"))
    await store.run(audit.append, mine)
    await store.run(audit.append, others)

    async def found(**query: object) -> list[Link]:
        links, _ = await store.read(audit.find, AuditQuery(**query))  # type: ignore[arg-type]
        return list(links)

    assert await found() == [mine[0], others[0], others[1], mine[1], mine[2]]
    assert await found(equal=(("user", "bob"),)) == [others[0]]
    assert await found(unequal=(("user", "ann"),)) == [others[0]]
    assert await found(equal=(("verb", "delete"), ("namespace", "ns"))) == [mine[1]]
    assert await found(equal=(("resource", "leases"), ("name", "x"))) == [others[1]]
    assert await found(since=now + 2 * SECOND, until=now + 2 * SECOND) == [others[1], mine[1]]
    assert await found(limit=2) == [mine[0], others[0], others[1]]
    assert await found(after=Place(others[1].at, "a", 2)) == [mine[1], mine[2]]


async def test_trimming_takes_the_beginning_in_parts_and_keeps_its_end(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    links = chain("a", *(record(at=now + number * SECOND) for number in (0, 1, 9, 2, 10)))
    await store.run(audit.append, links)
    clock.advance(timedelta(days=1) + 5 * SECOND)
    assert await store.run(audit.trim, timedelta(days=1)) == 2
    assert await store.read(lambda tx: list(tx.audit.links("a", after=0, limit=10))) == links[2:]
    assert await store.read(audit.chains) == {"a": links[1].head}
    clock.advance(timedelta(days=1))
    assert await store.run(lambda tx: tx.audit.trim(tx.now, tx.now, 2)) == 2
    assert await store.read(audit.chains) == {"a": links[3].head}
    assert [await store.run(audit.trim, timedelta(days=1)) for _ in range(2)] == [1, 0]
    assert await store.read(audit.head, "a") == links[-1].head
    assert await store.read(audit.chains) == {"a": links[-1].head}


async def test_shortening_takes_the_oldest_of_one_chain_and_says_how_much_that_was(store: Store, clock: ManualClock) -> None:
    links = chain("a", *(record(at=clock.now() + number * SECOND) for number in range(5)))
    assert await store.read(lambda tx: tx.audit.bytes()) == 0
    await store.run(audit.append, links)
    whole = await store.read(lambda tx: tx.audit.bytes())
    gone = await store.run(lambda tx: tx.audit.shorten("a", 2))
    assert await store.read(lambda tx: list(tx.audit.links("a", after=0, limit=10))) == links[2:]
    assert (gone, await store.read(lambda tx: tx.audit.bytes())) == (whole * 2 // 5, whole - gone)


async def test_a_link_of_a_clock_that_was_ahead_is_as_old_as_the_one_after_it(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    times = (now, now + timedelta(days=400), now + timedelta(days=401), now + SECOND, now + timedelta(days=402))
    links = chain("a", *(record(at=at) for at in times))
    await store.run(audit.append, links)
    clock.advance(timedelta(hours=1))
    trimmed = [await store.run(lambda tx: tx.audit.trim(now + 2 * SECOND, tx.now, 2)) for _ in range(4)]
    assert trimmed == [2, 2, 0, 0], "the last one was written just now, as far as anybody knows"
    assert await store.read(audit.chains) == {"a": links[3].head}


@dataclass
class Kept:
    """A place, opened anew by `again`, and all that it keeps."""

    again: Callable[[], Sink]
    links: Callable[[], Awaitable[list[Link]]]


@pytest.fixture(params=["memory", "store", "file"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kept]:
    match request.param:
        case "memory":
            sink = MemorySink()

            async def in_memory() -> list[Link]:
                return sink.links

            yield Kept(lambda: sink, in_memory)
        case "file":
            path = tmp_path / "audit.log"

            async def in_file() -> list[Link]:
                lines = path.read_bytes().splitlines() if path.exists() else []
                return [link for line in lines if (link := link_of(line)) is not None]

            yield Kept(lambda: FileSink(str(path)), in_file)
        case _:
            async with sqlite_database(tmp_path).opened(None) as store:

                async def in_store() -> list[Link]:
                    return list(await store.read(lambda tx: tx.audit.links("here", after=0, limit=100)))

                yield Kept(lambda: StoreSink(store, "here"), in_store)


async def test_links_are_kept_in_order_and_the_chain_goes_on_after_a_restart(kept: Kept) -> None:
    first = kept.again()
    links = chain(first.replica, record(1), record(2), after=await first.open())
    await first.write(links)
    second = kept.again()
    assert await second.open() == links[-1].head
    assert second.replica == first.replica
    more = chain(second.replica, record(3), after=links[-1].head)
    await second.write(more)
    assert await kept.links() == [*links, *more]


async def test_a_line_that_a_crash_has_torn_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    sink = FileSink(str(path))
    links = chain(sink.replica, record(1), record(2), after=await sink.open())
    await sink.write(links)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"chain":{"replica":"')
    again = FileSink(str(path))
    assert await again.open() == links[-1].head
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
    links = chain(sink.replica, record(1), record(2), after=await sink.open())
    await sink.write(links[:1])
    path.rename(tmp_path / "audit.log.1")
    path.mkdir()
    with pytest.raises(UnavailableError, match="cannot be written"):
        await sink.write(links[1:])
    path.rmdir()
    await sink.write(links[1:])
    assert link_of(path.read_bytes()) == links[1]
    assert path.stat().st_mode & 0o777 == 0o600
