"""Secrets in the database: sealed in their table and in the change log, with keys that can be replaced."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import select

from hub.api.meta.change import CONFIG_MAPS, SECRETS, Kind
from hub.ports import Transaction
from hub.registry.generic import objects
from hub.store import SqlStore, schema
from machinery.errors import InvalidError, UnavailableError
from machinery.meta.objects import Key, Query
from machinery.pki.encryption import Seal, header_of
from tests.checks import check_refusal_of
from tests.contract.conftest import database
from tests.fakes.databases import SqlDatabase
from tests.integration.test_store_migrations import opened as engine_at

__all__ = ["database"]  # the fixture

OLD, NEW = b"o" * 32, b"n" * 32
KEY = Key("east", "login")
HIDDEN = b"c3dvcmRmaXNo"
TABLES = (schema.objects, schema.changes)


@pytest.fixture
def url(database: SqlDatabase) -> str:
    return database.url


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
    with engine_at(url) as engine, engine.begin() as connection:
        return [bytes(row[0]) for table in TABLES for row in connection.execute(select(table.c.document))]


async def test_secrets_lie_sealed_in_the_database_and_are_read_as_they_were_written(url: str) -> None:
    async with opened(url, NEW) as store:
        await store.run(put)
        await store.run(put, q="bW9yZQ==")
        got = await store.read(lambda tx: tx.objects.get(SECRETS, KEY))
        listed = await store.read(lambda tx: tx.objects.find(SECRETS, Query()))
        changes = await store.read(lambda tx: tx.changes.since(0))
        past = await store.read(lambda tx: tx.objects.find(SECRETS, Query(at=changes[-1].revision)))
    assert got is not None
    assert HIDDEN in got.encoded
    assert [stored.encoded for stored in (*listed.items, *past.items)] == [got.encoded] * 2
    assert ([HIDDEN in change.encoded for change in changes], changes[-1].encoded) == ([True, True], got.encoded)
    kept = rows(url)
    assert len(kept) == 3, "the object and two changes"
    assert all(row.startswith(header_of(NEW)) and HIDDEN not in row for row in kept)
    async with opened(url, NEW) as store:
        await store.run(put, CONFIG_MAPS)
    assert sum(HIDDEN in row for row in rows(url)) == 2, "other kinds are stored as they are served"


async def test_hub_needs_the_key_of_its_secrets_and_after_a_rotation_the_new_one_alone(url: str) -> None:
    async with opened(url) as store:
        await check_refusal_of(UnavailableError, store.run(put), match="without the key for Secrets")
    assert rows(url) == []
    async with opened(url, OLD) as store:
        await store.run(put)
    needed = f"sealed with the key {header_of(OLD)[1:].hex()}, which this hub does not have"
    for keys in ((), (NEW,)):
        with pytest.raises(InvalidError, match=needed):
            async with opened(url, *keys):
                pytest.fail("it started")
    async with opened(url, NEW, OLD) as store:
        await store.run(put)
    assert {row[:5] for row in rows(url)} == {header_of(NEW)}
    async with opened(url, NEW) as store:
        got = await store.read(lambda tx: tx.objects.get(SECRETS, KEY))
    assert got is not None
    assert HIDDEN in got.encoded
