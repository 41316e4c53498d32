"""What every place promises that keeps audit records: a chain goes on where it ended, and nothing is kept twice or torn."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hub.audit.filesink import FileSink
from hub.audit.lines import link_of
from hub.audit.storesink import StoreSink
from hub.audit.trail import Sink
from hub.domain.chain import Head, Link
from machinery.errors import InvalidError, UnavailableError
from tests.fakes.audit_records import MemorySink, chain, record
from tests.fakes.databases import sqlite_database


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


async def test_an_empty_place_begins_a_chain(kept: Kept) -> None:
    assert await kept.again().open() == Head()


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


async def test_another_chain_has_another_name(kept: Kept) -> None:
    sink = kept.again()
    await sink.open()
    before = sink.replica
    assert await sink.renamed() == Head()
    assert sink.replica != before


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


async def test_a_file_that_is_no_audit_log_is_left_alone(tmp_path: Path) -> None:
    for name, content in (("a", b"dear diary"), ("b", b"dear diary\n")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InvalidError, match="name another file"):
            await FileSink(str(path)).open()
        assert path.read_bytes() == content


async def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
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
