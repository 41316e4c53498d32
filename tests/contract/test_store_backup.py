"""A hub's database in a file, and a database out of it: either engine into either, all or nothing, while the hub goes on."""

import asyncio
import errno
import os
import sqlite3
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from hub.api.certificates import CertificateRecord, Purpose
from hub.api.hubreplicas import Replica
from hub.api.liveness import Beat
from hub.api.managedclusters.availability import Transition
from hub.api.meta.change import MANAGED_CLUSTERS, SECRETS
from hub.ports import BACKUP_MADE, Transaction
from hub.registry.generic import objects
from hub.replica.installation import settle
from hub.store import SqlStore, schema
from hub.store.backup.archive import FORMAT, MANIFEST, Archive, ArchiveWriter, Manifest
from hub.store.backup.backup import note_backup, write_tables
from hub.store.backup.restore import RATE, Restored, RestoreTarget, restore_tables
from hub.store.engine.engine import parse_url, writing_engine
from hub.store.migrate import HEAD, schema_at
from hub.store.query.inventory import inventory
from machinery.election.lock import Candidate
from machinery.errors import AlreadyExistsError, ExpiredError, InvalidError, UnavailableError
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.meta.objects import Key
from tests.checks import check_refusal, check_refusal_of, present
from tests.fakes.databases import SqlDatabase
from tests.fakes.next_release import CONTRACTED, next_release
from tests.fixtures.postgres import Databases

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EDGE = ClusterName("edge")
HIDDEN = "c3dvcmRmaXNo"
ENGINES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture
def databases(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, SqlDatabase]:
    """By engine, an empty one each."""
    found = {"sqlite": SqlDatabase(f"sqlite:///{tmp_path / 'hub.db'}")}
    if request.node.get_closest_marker("postgres"):
        found["postgres"] = SqlDatabase(request.getfixturevalue("postgres_url"))
    return found


@pytest.fixture
def another_postgres_url(postgres_databases: Databases) -> Iterator[str]:
    with postgres_databases.empty() as url:
        yield url


def put(tx: Transaction, name: str, /, **labels: str) -> None:
    key, metadata = Key("", name), {"name": name, "uid": f"uid-{name}", "labels": labels}
    tx.objects.put(MANAGED_CLUSTERS, {"metadata": metadata}, tx.objects.get(MANAGED_CLUSTERS, key), "ann")


def pair(tx: Transaction, number: int) -> None:
    put(tx, f"left-{number}")
    put(tx, f"right-{number}")


def live(tx: Transaction) -> None:
    """Something in every kind of table."""
    settle(tx)
    put(tx, EDGE, region="eu")
    secret: dict[str, Any] = {"metadata": {"name": "login", "namespace": "east"}, "data": {"p": HIDDEN}}
    objects.put(tx, SECRETS, secret, None, "ann")
    times, who = (NOW, NOW + timedelta(days=1)), (EDGE, AgentId("a1"))
    tx.certificates.add(CertificateRecord(SerialNumber(0xABC), Purpose.AGENT, "user", ("group",), *times, "hash", NOW, *who))
    tx.heartbeats.store([Beat(EDGE, timedelta(seconds=1), available=True)])
    tx.transitions.add(Transition(EDGE, "uid-edge", NOW, "", "True", "Reason", "ann"))
    tx.heartbeats.set_session(EDGE, "s1")
    tx.replicas.put(Replica("r1", "home", "i1", "0.1", "g:1", "h:1", tx.now, tx.now - timedelta(minutes=1)))
    tx.leaders.take(None, Candidate("r1", "i1"), timedelta(seconds=15))


def fall_often(tx: Transaction) -> None:
    """More rows than a transaction is tried again: numbers that begin anew are noticed."""
    for _ in range(100):
        tx.transitions.add(Transition(ClusterName("west"), "uid-west", NOW, "True", "False", "Reason", "ann"))


def looked(tx: Transaction) -> dict[str, object]:
    """What has to be the same afterwards."""
    cluster = present(tx.objects.get(MANAGED_CLUSTERS, Key("", EDGE)))
    return {
        "cluster": (cluster.encoded, cluster.revision),
        "secret": present(tx.objects.get(SECRETS, Key("east", "login"))).document["data"],
        "certificates": tx.certificates.of_cluster(EDGE),
        "beat": replace(present(tx.heartbeats.of(EDGE)), session=None),
        "transitions": tx.transitions.of(EDGE, limit=9),
        "hub": tx.facts.get("hub-id"),
    }


def backed_up(url: str, file: Path) -> Manifest:
    with ArchiveWriter(file) as writer:
        taken = write_tables(url, writer)
        known = taken.made, taken.schema, taken.revision, taken.facts.get("hub-id", "")
        return writer.finish(Manifest(FORMAT, "0.1.0", *known, "open-cluster-management.io", ()))


def restore(file: Path, url: str, *, replaces: bool = False, above: int = 0) -> Restored:
    with Archive(file) as archive:
        archive.verify()
        return restore_tables(archive, RestoreTarget(url, replaces, above), lambda tx: tx.facts.set("restored", "yes"))[0]


@asynccontextmanager
async def lived(database: SqlDatabase) -> AsyncIterator[SqlStore]:
    async with database.opened(None) as store:
        await store.run(live)
        yield store


@pytest.mark.postgres
@pytest.mark.parametrize("source", ["sqlite", "postgres"])
async def test_a_hub_is_restored_into_either_database_from_either(
    source: str, databases: dict[str, SqlDatabase], tmp_path: Path, another_postgres_url: str
) -> None:
    file = tmp_path / "hub.zip"
    async with lived(databases[source]) as store:
        await store.run(fall_often)
        before, manifest = await store.read(looked), backed_up(databases[source].url, file)
        served = await store.read(lambda tx: tx.changes.newest())
    assert HIDDEN.encode() not in zipfile.ZipFile(file).read("tables/objects.jsonl"), "secrets stay sealed"
    for place in (SqlDatabase(f"sqlite:///{tmp_path / 'other.db'}"), SqlDatabase(another_postgres_url)):
        done = restore(file, place.url)
        assert manifest.revision == served < done.revision - 50 * RATE
        async with place.opened(None) as store:
            assert (await store.read(looked), await store.read(lambda tx: tx.facts.get("restored"))) == (before, "yes")
            await check_refusal_of(ExpiredError, store.read(lambda tx: tx.changes.since(served)))
            assert await store.read(lambda tx: (tx.changes.oldest(), tx.changes.newest())) == (done.revision, done.revision)
            assert await store.read(lambda tx: (tx.replicas.all(), tx.marks.all())) == ([], [])
            assert present(await store.read(lambda tx: tx.heartbeats.of(EDGE))).session is None
            await store.run(put, "new")
            later = await store.read(lambda tx, at: [change.revision for change in tx.changes.since(at)], done.revision)
            assert later == [done.revision + 1]
            await store.run(lambda tx: tx.transitions.add(Transition(EDGE, "uid-edge", NOW, "True", "False", "Later", "ann")))
            assert len(await store.read(lambda tx: tx.transitions.of(EDGE, limit=9))) == 2
            record = present(await store.read(lambda tx: tx.leaders.record()))
            assert record.holder == "", "the restored hub has no leader"
            taken = await store.run(lambda tx, old: tx.leaders.take(old, Candidate("r2", "i2"), timedelta(seconds=15)), record)
            assert taken.term > 1000 > record.term, "no term comes again"


@pytest.mark.parametrize("engine", ENGINES)
async def test_backup_is_of_one_instant_under_writes(engine: str, databases: dict[str, SqlDatabase], tmp_path: Path) -> None:
    """Each transaction writes two clusters; whatever instant it is, it has both or neither."""
    async with lived(databases[engine]) as store:
        stop = asyncio.Event()

        async def write() -> int:
            count = 0
            while not stop.is_set():
                await store.run(pair, count)
                count += 1
            return count

        writing = asyncio.create_task(write())
        files = [tmp_path / f"{number}.zip" for number in range(3)]
        for file in files:
            await asyncio.to_thread(backed_up, databases[engine].url, file)
        stop.set()
        assert await writing > 3
    for file in files:
        with Archive(file) as archive:
            archive.verify()
            entries = {entry.name: entry for entry in archive.manifest.tables}
            names = {row["name"] for row in archive.rows(entries["objects"]) if row["kind"] == MANAGED_CLUSTERS}
            revisions = [row["revision"] for row in archive.rows(entries["changes"])]
        lefts = {name.partition("-")[2] for name in names if name.startswith("left-")}
        assert lefts == {name.partition("-")[2] for name in names if name.startswith("right-")}
        assert max(revisions) == archive.manifest.revision


def found(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern))


def fail(_tx: Transaction) -> None:
    raise InvalidError("no")


@contextmanager
def untouched(file: Path) -> Iterator[None]:
    before = file.read_bytes()
    yield
    assert file.read_bytes() == before


async def test_restore_replaces_a_database_only_on_demand_and_as_its_last_step(
    databases: dict[str, SqlDatabase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, file, backup = databases["sqlite"].url, tmp_path / "hub.db", tmp_path / "hub.zip"
    replace = Path.replace

    def crash(self: Path, target: Path) -> Path:
        if self.name.endswith(".restored"):
            raise KeyboardInterrupt
        return replace(self, target)

    async with lived(databases["sqlite"]) as store:
        backed_up(url, backup)
        for number in range(5):
            await store.run(put, f"later-{number}")
        newest = await store.read(lambda tx: tx.changes.newest())
    with untouched(file), pytest.raises(AlreadyExistsError, match="--replace"):
        restore(backup, url)
    with untouched(file), Archive(backup) as archive, pytest.raises(InvalidError):
        restore_tables(archive, RestoreTarget(url, replaces=True), fail)
    assert found(tmp_path, ".hub.db.restored*") == []
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            restore(backup, url, replaces=True)
    async with databases["sqlite"].opened(None) as store:
        assert await store.read(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "later-1"))) is not None
    done = restore(backup, url, replaces=True)
    assert done.revision > newest + RATE
    with closing(sqlite3.connect(present(done.former))) as former:
        assert former.execute("SELECT value FROM revision").fetchone() == (newest,)
    async with databases["sqlite"].opened(None) as store:
        assert await store.read(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "later-1"))) is None
    file.write_bytes(b"what a broken disk has left of it" * 100)
    done = restore(backup, url, replaces=True, above=10**9)
    assert done.revision > 10**9, "what the operator knows counts"
    async with databases["sqlite"].opened(None) as store:
        assert await store.read(looked)
    file.write_bytes(b"")
    assert restore(backup, url).former, "a file without tables has no hub"


async def test_backup_has_every_table_and_is_neither_overwritten_nor_left_half_made(
    databases: dict[str, SqlDatabase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, file, late_file = databases["sqlite"].url, tmp_path / "hub.zip", tmp_path / "late.zip"

    def unable(*_arguments: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    check_refusal(InvalidError, backed_up, url, file, match="hub.db does not exist")
    check_refusal(InvalidError, note_backup, url, "", match="hub.db does not exist")
    assert found(tmp_path, "*") == []
    (tmp_path / "empty").touch()
    check_refusal(InvalidError, backed_up, f"sqlite:///{tmp_path / 'empty'}", file, match="no tables of a hub")
    assert found(tmp_path, "*.zip*") + found(tmp_path, ".*.new") == []
    async with lived(databases["sqlite"]) as store:
        manifest = backed_up(url, file)
        with untouched(file), pytest.raises(AlreadyExistsError, match="choose another file"):
            backed_up(url, file)
        assert file.stat().st_mode & 0o077 == 0
        for has_links in (True, False):
            with monkeypatch.context() as patched:
                if not has_links:
                    patched.setattr(os, "link", unable)
                with ArchiveWriter(late_file) as late:
                    backed_up(url, late_file)
                    with untouched(late_file), pytest.raises(AlreadyExistsError, match="exists by now"):
                        late.finish(Manifest(FORMAT, "", "", HEAD, 1, "id", "x", ()))
            with Archive(late_file) as archive:
                archive.verify()
            late_file.unlink()
        assert found(tmp_path, ".*.new") == []
    assert {entry.name for entry in manifest.tables} == set(schema.metadata.tables) - {inventory.name}
    engine = writing_engine(parse_url(url))
    with engine.begin() as connection:
        for entry in manifest.tables:
            assert entry.rows == len(connection.execute(select(schema.metadata.tables[entry.name])).all()), entry.name
    engine.dispose()
    async with databases["sqlite"].opened(None) as store:
        note_backup(url, manifest.made)
        assert await store.read(lambda tx: tx.facts.get(BACKUP_MADE)) == manifest.made


@pytest.mark.postgres
async def test_a_nul_that_sqlite_has_stored_stops_no_restore(
    databases: dict[str, SqlDatabase], tmp_path: Path, another_postgres_url: str
) -> None:
    def report(tx: Transaction) -> None:
        stored = present(tx.objects.get(MANAGED_CLUSTERS, Key("", EDGE)))
        status = {"version": {"kubernetes": "v1\x00"}, "clusterClaims": [{"name": "a\x00", "value": "b"}]}
        tx.objects.put(MANAGED_CLUSTERS, {**stored.document, "status": status}, stored, "agent")

    async with lived(databases["sqlite"]) as store:
        await store.run(report)
        backed_up(databases["sqlite"].url, tmp_path / "hub.zip")
    restore(tmp_path / "hub.zip", another_postgres_url)
    async with SqlDatabase(another_postgres_url).opened(None) as store:
        await store.run(put, EDGE)


@pytest.mark.postgres
async def test_on_postgresql_a_restore_is_all_or_nothing_and_never_under_a_replica_that_runs(
    databases: dict[str, SqlDatabase], tmp_path: Path
) -> None:
    url, backup = databases["postgres"].url, tmp_path / "hub.zip"
    async with lived(databases["postgres"]) as store:
        backed_up(url, backup)
        await store.run(put, "later")
        await store.run(lambda tx: tx.replicas.put(Replica("r2", "home", "i2", "0.1", "g:1", "h:1", tx.now, tx.now)))
    check_refusal(UnavailableError, restore, backup, url, replaces=True, match='replica "r2" of a hub runs on this database')

    async with databases["postgres"].opened(None) as store:
        await store.run(lambda tx: tx.replicas.remove("r2"))
    with Archive(backup) as archive, pytest.raises(InvalidError, match="no"):
        restore_tables(archive, RestoreTarget(url, replaces=True), fail)
    async with databases["postgres"].opened(None) as store:
        assert await store.read(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "later"))) is not None
    check_refusal(AlreadyExistsError, restore, backup, url, match="--replace")
    restore(backup, url, replaces=True)
    async with databases["postgres"].opened(None) as store:
        assert await store.read(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "later"))) is None
        assert await store.read(looked)


async def test_a_damaged_backup_is_reported_before_anything_is_touched(
    databases: dict[str, SqlDatabase], tmp_path: Path
) -> None:
    whole, wrong = tmp_path / "hub.zip", tmp_path / "wrong.zip"
    async with lived(databases["sqlite"]):
        backed_up(databases["sqlite"].url, whole)
    wrong.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    check_refusal(
        InvalidError, restore, wrong, f"sqlite:///{tmp_path / 'other.db'}", match="not a backup of a hub, or is incomplete"
    )
    for entry, old, by, text in (
        ("tables/objects.jsonl", b"edge", b"evil", "its table objects differs from its digest"),
        (MANIFEST, f'"schema": "{HEAD}"'.encode(), b'"schema": "9999"', "restore it with that release"),
    ):
        rewritten(whole, wrong, entry, old, by)
        check_refusal(InvalidError, restore, wrong, f"sqlite:///{tmp_path / 'other.db'}", match=text)
    assert not (tmp_path / "other.db").exists()


def rewritten(file: Path, new: Path, entry: str, old: bytes, by: bytes) -> None:
    """The backup with something changed in one entry."""
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(new, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            assert name != entry or old in content
            target.writestr(name, content.replace(old, by) if name == entry else content)


COLUMNS = (
    "SELECT table_name, column_name, data_type, collation_name, is_nullable FROM information_schema.columns"
    " WHERE table_schema = 'public' ORDER BY 1, 2"
)
RELEASES = sorted(Path(__file__).parents[1].joinpath("fixtures", "versions").glob("*.*/"))


@pytest.fixture(params=["this", "next"])
def head(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The newest schema of the release that the test runs as: this one, or the next."""
    with next_release(tmp_path) if request.param == "next" else nullcontext():
        yield CONTRACTED if request.param == "next" else HEAD


async def check(url: str, head: str) -> None:
    async with SqlDatabase(url).opened(None) as store:
        seen: Any = await store.read(looked)
    assert schema_at(parse_url(url)).version == head
    assert seen["hub"]
    assert (seen["secret"], [record.cluster for record in seen["certificates"]]) == ({"p": HIDDEN}, [EDGE])
    assert len(seen["transitions"]) == 1


def restored(release: Path, url: str) -> None:
    with Archive(release / "backup.zip") as archive:
        archive.verify()
        restore_tables(archive, RestoreTarget(url), lambda tx: tx.facts.get("hub-id"))


async def test_a_database_and_a_backup_of_every_release_are_served_on_sqlite(tmp_path: Path, head: str) -> None:
    for release in RELEASES:
        loaded, other = (tmp_path / f"{release.name}-{name}.db" for name in ("loaded", "restored"))
        with closing(sqlite3.connect(loaded)) as connection:
            connection.executescript((release / "sqlite.sql").read_text())
        restored(release, f"sqlite:///{other}")
        for file in (loaded, other):
            await check(f"sqlite:///{file}", head)


@pytest.mark.postgres
async def test_a_database_and_a_backup_of_every_release_are_served_on_postgres(
    postgres_databases: Databases, head: str
) -> None:
    import psycopg  # noqa: PLC0415 - only where the package is installed

    for release in RELEASES:
        with postgres_databases.empty() as url, psycopg.connect(url) as connection:
            connection.execute((release / "postgres.sql").read_text())
            connection.commit()
            await check(url, head)
            loaded = connection.execute(COLUMNS).fetchall()
        with postgres_databases.empty() as url, psycopg.connect(url, autocommit=True) as connection:
            restored(release, url)
            await check(url, head)
            assert connection.execute(COLUMNS).fetchall() == loaded  # what migrations create is what the release had
