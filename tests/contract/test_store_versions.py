"""What hubs of every release have kept is served by this one: its database on either engine, and its backups.

`tests/fixtures/versions` has a folder of each, as `record.py` there made it when the release was made; none is ever changed.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hub.store.archive import Archive
from hub.store.migrate import HEAD
from hub.store.restore import Target, restore_tables
from tests.contract.test_store_backup import EDGE, empty, looked
from tests.fakes.databases import SqlDatabase

RELEASES = sorted(Path(__file__).parents[1].joinpath("fixtures", "versions").glob("*.*/"))
RELEASED = pytest.mark.parametrize("release", RELEASES, ids=[folder.name for folder in RELEASES])


def loaded(release: Path, folder: Path) -> str:
    """The URL of that release's embedded database, as it was."""
    with closing(sqlite3.connect(folder / "hub.db")) as connection:
        connection.executescript((release / "sqlite.sql").read_text())
    return f"sqlite:///{folder / 'hub.db'}"


def check(seen: dict[str, Any]) -> None:
    assert seen["hub"]
    assert seen["secret"] == {"p": "c3dvcmRmaXNo"}
    assert [record.cluster for record in seen["certificates"]] == [EDGE]
    assert len(seen["transitions"]) == 1


@RELEASED
async def test_a_database_of_every_release_is_served(release: Path, tmp_path: Path) -> None:
    async with SqlDatabase(loaded(release, tmp_path)).opened(None) as store:
        check(await store.read(looked))


@pytest.mark.postgres
async def test_a_database_and_a_backup_of_every_release_are_served_on_postgresql(postgres_url: str) -> None:
    import psycopg  # noqa: PLC0415 - only where the package is installed

    for release in RELEASES:
        empty(postgres_url)
        with psycopg.connect(postgres_url) as connection:
            connection.execute((release / "postgres.sql").read_text())
        async with SqlDatabase(postgres_url).opened(None) as store:
            check(await store.read(looked))
        empty(postgres_url)
        restored(release, postgres_url)
        async with SqlDatabase(postgres_url).opened(None) as store:
            check(await store.read(looked))


def restored(release: Path, url: str) -> None:
    with Archive(release / "backup.zip") as archive:
        archive.verify()
        assert archive.manifest.schema <= HEAD
        restore_tables(archive, Target(url), lambda tx: tx.facts.get("hub-id"))


@RELEASED
async def test_a_backup_of_every_release_is_restored(release: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'hub.db'}"
    restored(release, url)
    async with SqlDatabase(url).opened(None) as store:
        check(await store.read(looked))
