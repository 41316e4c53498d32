"""Secrets in the database: sealed in their table and in the change log, with keys that can be replaced."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from hub.domain.change import CONFIG_MAPS, SECRETS, Key, Kind, Query
from hub.ports import Transaction
from hub.services import objects
from hub.store import SqlStore, schema
from hub.store.engine import parse_url, writing_engine
from machinery.errors import InvalidError, UnavailableError
from machinery.sealing import Seal, header_of
from tests.fakes.databases import SqlDatabase

OLD, NEW = b"o" * 32, b"n" * 32
KEY = Key("east", "login")
HIDDEN = b"c3dvcmRmaXNo"
TABLES = (schema.objects, schema.changes)


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    from tests.fakes.postgres import postgres_server  # noqa: PLC0415 - only where the package is installed

    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'hub.db'}"
    address: str = request.getfixturevalue("postgres_url")
    SqlDatabase(address).clear()
    return address


@asynccontextmanager
async def opened(url: str, *keys: bytes) -> AsyncIterator[SqlStore]:
    store = SqlStore(url, Seal(keys) if keys else None)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def put(tx: Transaction, /, kind: Kind = SECRETS, **data: str) -> None:
    metadata = {"name": KEY.name, "namespace": KEY.namespace}
    document: dict[str, Any] = {"metadata": metadata, "data": {"p": HIDDEN.decode(), **data}}
    objects.put(tx, kind, document, tx.objects.get(kind, KEY), "admin")


def rows(url: str) -> list[bytes]:
    """Everything that the database keeps of documents."""
    engine = writing_engine(parse_url(url))
    with engine.begin() as connection:
        found = [bytes(row[0]) for table in TABLES for row in connection.execute(select(table.c.document))]
    engine.dispose()
    return found


async def test_no_secret_lies_open_in_the_database(url: str) -> None:
    async with opened(url, NEW) as store:
        await store.run(put)
        await store.run(put, q="bW9yZQ==")
    kept = rows(url)
    assert len(kept) == 3, "the object and two changes"
    assert all(row.startswith(header_of(NEW)) and HIDDEN not in row for row in kept)


async def test_other_kinds_are_stored_as_they_are_served(url: str) -> None:
    async with opened(url, NEW) as store:
        await store.run(put, CONFIG_MAPS)
    assert all(HIDDEN in row for row in rows(url))


async def test_a_secret_is_read_as_it_was_written(url: str) -> None:
    async with opened(url, NEW) as store:
        await store.run(put)
        got = await store.read(lambda tx: tx.objects.get(SECRETS, KEY))
        listed = await store.read(lambda tx: tx.objects.find(SECRETS, Query()))
        changes = await store.read(lambda tx: tx.changes.since(0))
        past = await store.read(lambda tx: tx.objects.find(SECRETS, Query(at=changes[-1].revision)))
    assert got is not None
    assert HIDDEN in got.encoded
    assert [stored.encoded for stored in (*listed.items, *past.items)] == [got.encoded] * 2
    assert [change.encoded for change in changes] == [got.encoded]


async def test_after_a_rotation_the_old_key_is_not_needed(url: str) -> None:
    async with opened(url, OLD) as store:
        await store.run(put)
    async with opened(url, NEW, OLD) as store:
        await store.run(put)
    assert {row[:5] for row in rows(url)} == {header_of(NEW)}
    async with opened(url, NEW) as store:
        got = await store.read(lambda tx: tx.objects.get(SECRETS, KEY))
    assert got is not None
    assert HIDDEN in got.encoded


@pytest.mark.parametrize("keys", [(), (NEW,)], ids=["no key", "another key"])
async def test_a_hub_that_lacks_the_key_does_not_start(url: str, keys: tuple[bytes, ...]) -> None:
    async with opened(url, OLD) as store:
        await store.run(put)
    with pytest.raises(InvalidError, match=f"sealed with the key {header_of(OLD)[1:].hex()}, which this hub does not have"):
        async with opened(url, *keys):
            pytest.fail("it started")


async def test_without_a_key_no_secret_is_stored(url: str) -> None:
    async with opened(url) as store:
        with pytest.raises(UnavailableError, match="without a key for Secrets"):
            await store.run(put)
    assert rows(url) == []
