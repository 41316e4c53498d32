"""A hub's database in a file, and a database out of it: either engine into either, all or nothing, while the hub goes on."""

import asyncio
import errno
import os
import sqlite3
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.change import MANAGED_CLUSTERS, SECRETS, Key
from hub.domain.heartbeat import Beat
from hub.domain.replica import Replica
from hub.domain.transition import Transition
from hub.installation import settle
from hub.ports import Transaction
from hub.services import objects
from hub.store import SqlStore, schema
from hub.store.archive import FORMAT, MANIFEST, Archive, ArchiveWriter, Manifest
from hub.store.backup import BACKUP_MADE, note_backup, write_tables
from hub.store.engine import parse_url, writing_engine
from hub.store.inventory import inventory
from hub.store.migrate import HEAD, schema_of
from hub.store.restore import RATE, Restored, Target, restore_tables
from machinery.election.lock import Candidate
from machinery.errors import AlreadyExistsError, ExpiredError, InvalidError, UnavailableError
from machinery.identity import AgentId, ClusterName, SerialNumber
from tests.fakes.databases import SqlDatabase
from tests.integration.test_store_upgrades import EVERYTHING, LEFT, VERSIONS, everything, left_behind

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EDGE = ClusterName("edge")
HIDDEN = "c3dvcmRmaXNo"
ENGINES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture
def databases(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, SqlDatabase]:
    """By engine, an empty one each."""
    found = {"sqlite": SqlDatabase(f"sqlite:///{tmp_path / 'hub.db'}")}
    if request.node.get_closest_marker("postgres"):
        url: str = request.getfixturevalue("postgres_url")
        empty(url)
        found["postgres"] = SqlDatabase(url)
    return found


def empty(url: str) -> None:
    engine = writing_engine(parse_url(url))
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()


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
    tx.certificates.add(
        CertificateRecord(
            SerialNumber(0xABC),
            Purpose.AGENT,
            "user",
            ("group",),
            NOW,
            NOW + timedelta(days=1),
            "hash",
            NOW,
            EDGE,
            AgentId("a1"),
        )
    )
    tx.heartbeats.store([Beat(EDGE, timedelta(seconds=1), available=True)])
    tx.transitions.add(Transition(EDGE, "uid-edge", NOW, "", "True", "Reason", "ann"))
    tx.replicas.put(Replica("r1", "home", "i1", "0.1", "g:1", "h:1", tx.now, tx.now - timedelta(minutes=1)))
    tx.leaders.take(None, Candidate("r1", "i1"), timedelta(seconds=15))


def fall_often(tx: Transaction) -> None:
    """More rows than a transaction is tried again: numbers that begin anew are noticed."""
    for _ in range(100):
        tx.transitions.add(Transition(ClusterName("west"), "uid-west", NOW, "True", "False", "Reason", "ann"))


def looked(tx: Transaction) -> dict[str, object]:
    """What has to be the same afterwards."""
    cluster, secret = tx.objects.get(MANAGED_CLUSTERS, Key("", EDGE)), tx.objects.get(SECRETS, Key("east", "login"))
    assert cluster is not None
    assert secret is not None
    return {
        "cluster": (cluster.encoded, cluster.revision),
        "secret": secret.document["data"],
        "certificates": tx.certificates.of_cluster(EDGE),
        "beat": tx.heartbeats.of(EDGE),
        "transitions": tx.transitions.of(EDGE, limit=9),
        "hub": tx.facts.get("hub-id"),
    }


def manifest_of(writer: ArchiveWriter, url: str) -> Manifest:
    snapshot = write_tables(url, writer)
    hub = snapshot.facts.get("hub-id", "")
    return writer.finish(
        Manifest(FORMAT, "0.1.0", snapshot.made, snapshot.schema, snapshot.revision, hub, "open-cluster-management.io", ())
    )


def backed_up(url: str, file: Path) -> Manifest:
    with ArchiveWriter(file) as writer:
        return manifest_of(writer, url)


def restore(file: Path, url: str, *, replaces: bool = False, above: int = 0) -> Restored:
    with Archive(file) as archive:
        archive.verify()
        return restore_tables(archive, Target(url, replaces, above), lambda tx: tx.facts.set("restored", "yes"))[0]


@asynccontextmanager
async def lived(database: SqlDatabase) -> AsyncIterator[SqlStore]:
    async with database.opened(None) as store:
        await store.run(live)
        yield store


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("sqlite", "sqlite"),
        pytest.param("sqlite", "postgres", marks=pytest.mark.postgres),
        pytest.param("postgres", "sqlite", marks=pytest.mark.postgres),
        pytest.param("postgres", "postgres", marks=pytest.mark.postgres),
    ],
)
async def test_a_hub_is_restored_into_either_database_from_either(
    source: str, target: str, databases: dict[str, SqlDatabase], tmp_path: Path
) -> None:
    file = tmp_path / "hub.zip"
    async with lived(databases[source]) as store:
        await store.run(fall_often)
        before = await store.read(looked)
        manifest = backed_up(databases[source].url, file)
        served = await store.read(lambda tx: tx.changes.newest())
    place = databases[target] if source != target else SqlDatabase(f"sqlite:///{tmp_path / 'other.db'}")
    if source == target == "postgres":
        place = databases["postgres"]
        empty(place.url)
    done = restore(file, place.url)
    assert HIDDEN.encode() not in zipfile.ZipFile(file).read("tables/objects.jsonl"), "secrets stay sealed"
    assert manifest.revision == served < done.revision - 50 * RATE
    async with place.opened(None) as store:
        assert await store.read(looked) == before
        assert await store.read(lambda tx: tx.facts.get("restored")) == "yes"
        with pytest.raises(ExpiredError):
            await store.read(lambda tx: tx.changes.since(served))
        assert await store.read(lambda tx: (tx.changes.oldest(), tx.changes.newest())) == (done.revision, done.revision)
        assert await store.read(lambda tx: (tx.replicas.all(), tx.marks.all())) == ([], [])
        await store.run(put, "new")
        assert await store.read(lambda tx: [change.revision for change in tx.changes.since(done.revision)]) == [
            done.revision + 1
        ]
        await store.run(lambda tx: tx.transitions.add(Transition(EDGE, "uid-edge", NOW, "True", "False", "Later", "ann")))
        assert len(await store.read(lambda tx: tx.transitions.of(EDGE, limit=9))) == 2


async def test_whoever_led_leads_no_more_and_no_term_comes_again(databases: dict[str, SqlDatabase], tmp_path: Path) -> None:
    async with lived(databases["sqlite"]):
        backed_up(databases["sqlite"].url, tmp_path / "hub.zip")
    other = SqlDatabase(f"sqlite:///{tmp_path / 'other.db'}")
    restore(tmp_path / "hub.zip", other.url)
    async with other.opened(None) as store:
        record = await store.read(lambda tx: tx.leaders.record())
        assert record is not None
        assert record.holder == ""
        taken = await store.run(lambda tx: tx.leaders.take(record, Candidate("r2", "i2"), timedelta(seconds=15)))
        assert taken.term > 1000 > record.term


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_backup_is_of_one_instant_while_the_hub_writes(
    engine: str, databases: dict[str, SqlDatabase], tmp_path: Path
) -> None:
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


@pytest.mark.parametrize("dump", LEFT, ids=VERSIONS)
async def test_a_backup_of_every_earlier_schema_is_restored(dump: Path, tmp_path: Path) -> None:
    left_behind(tmp_path / "old.db", dump)
    manifest = backed_up(f"sqlite:///{tmp_path / 'old.db'}", tmp_path / "hub.zip")
    assert manifest.schema == dump.stem.removeprefix("v")
    restore(tmp_path / "hub.zip", f"sqlite:///{tmp_path / 'hub.db'}")
    engine = writing_engine(parse_url(f"sqlite:///{tmp_path / 'hub.db'}"))
    with engine.begin() as connection:
        assert schema_of(connection).version == HEAD
        connection.execute(schema.revision.update().values(compacted=0))  # for a look at the log
    engine.dispose()
    async with SqlDatabase(f"sqlite:///{tmp_path / 'hub.db'}").opened(None) as store:
        assert await store.read(everything) == EVERYTHING


def found(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern))


@contextmanager
def untouched(file: Path) -> Iterator[None]:
    before = file.read_bytes()
    yield
    assert file.read_bytes() == before


async def test_what_is_there_is_replaced_only_when_told_and_is_kept(databases: dict[str, SqlDatabase], tmp_path: Path) -> None:
    url, file = databases["sqlite"].url, tmp_path / "hub.db"
    async with lived(databases["sqlite"]):
        backed_up(url, tmp_path / "hub.zip")
    async with databases["sqlite"].opened(None) as store:
        for number in range(5):
            await store.run(put, f"later-{number}")
        newest = await store.read(lambda tx: tx.changes.newest())
    with untouched(file), pytest.raises(AlreadyExistsError, match="--replace"):
        restore(tmp_path / "hub.zip", url)
    done = restore(tmp_path / "hub.zip", url, replaces=True)
    assert done.revision > newest + RATE
    assert done.former is not None
    with closing(sqlite3.connect(done.former)) as former:
        assert former.execute("SELECT value FROM revision").fetchone() == (newest,)
    async with databases["sqlite"].opened(None) as store:
        assert await store.read(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "later-1"))) is None


async def test_a_damaged_database_is_no_hindrance(databases: dict[str, SqlDatabase], tmp_path: Path) -> None:
    async with lived(databases["sqlite"]):
        backed_up(databases["sqlite"].url, tmp_path / "hub.zip")
    (tmp_path / "hub.db").write_bytes(b"what a broken disk has left of it" * 100)
    done = restore(tmp_path / "hub.zip", databases["sqlite"].url, replaces=True, above=10**9)
    assert done.revision > 10**9, "what the operator knows counts"
    async with databases["sqlite"].opened(None) as store:
        assert await store.read(looked)


async def test_a_restore_that_fails_leaves_what_was_there(databases: dict[str, SqlDatabase], tmp_path: Path) -> None:
    async with lived(databases["sqlite"]):
        backed_up(databases["sqlite"].url, tmp_path / "hub.zip")

    def fail(_tx: Transaction) -> None:
        raise InvalidError("no")

    with untouched(tmp_path / "hub.db"), Archive(tmp_path / "hub.zip") as archive, pytest.raises(InvalidError):
        restore_tables(archive, Target(databases["sqlite"].url, replaces=True), fail)
    assert found(tmp_path, ".hub.db.restored*") == []


async def test_a_crash_before_the_last_step_of_a_restore_leaves_the_database_in_its_place(
    databases: dict[str, SqlDatabase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(databases["sqlite"]) as store:
        backed_up(databases["sqlite"].url, tmp_path / "hub.zip")
        await store.run(put, "later")

    replace = Path.replace

    def crash(self: Path, target: Path) -> Path:
        if self.name.endswith(".restored"):
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        restore(tmp_path / "hub.zip", databases["sqlite"].url, replaces=True)
    monkeypatch.undo()
    async with databases["sqlite"].opened(None) as store:
        assert await store.read(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "later"))) is not None
    assert restore(tmp_path / "hub.zip", databases["sqlite"].url, replaces=True).former


@pytest.mark.parametrize("links", [True, False])
async def test_of_two_backups_into_one_file_one_is_made_and_the_other_is_told(
    databases: dict[str, SqlDatabase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool
) -> None:
    """Also where the file system knows no hard links."""
    file = tmp_path / "hub.zip"

    def unable(*_arguments: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", unable)
    async with lived(databases["sqlite"]):
        with ArchiveWriter(file) as late:
            backed_up(databases["sqlite"].url, file)
            with untouched(file), pytest.raises(AlreadyExistsError, match="there by now"):
                late.finish(Manifest(FORMAT, "", "", HEAD, 1, "id", "x", ()))
    with Archive(file) as archive:
        archive.verify()
    assert found(tmp_path, ".*.new") == []


@pytest.mark.postgres
async def test_on_postgresql_too_a_restore_is_all_or_nothing(databases: dict[str, SqlDatabase], tmp_path: Path) -> None:
    url = databases["postgres"].url
    async with lived(databases["postgres"]) as store:
        backed_up(url, tmp_path / "hub.zip")
        await store.run(put, "later")

    def fail(_tx: Transaction) -> None:
        raise InvalidError("no")

    with Archive(tmp_path / "hub.zip") as archive, pytest.raises(InvalidError, match="no"):
        restore_tables(archive, Target(url, replaces=True), fail)
    async with databases["postgres"].opened(None) as store:
        assert await store.read(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "later"))) is not None
    with pytest.raises(AlreadyExistsError, match="--replace"):
        restore(tmp_path / "hub.zip", url)
    restore(tmp_path / "hub.zip", url, replaces=True)
    async with databases["postgres"].opened(None) as store:
        assert await store.read(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "later"))) is None
        assert await store.read(looked)


@pytest.mark.postgres
async def test_nothing_is_restored_under_a_replica_that_runs(databases: dict[str, SqlDatabase], tmp_path: Path) -> None:
    async with lived(databases["postgres"]) as store:
        backed_up(databases["postgres"].url, tmp_path / "hub.zip")
        await store.run(lambda tx: tx.replicas.put(Replica("r2", "home", "i2", "0.1", "g:1", "h:1", tx.now, tx.now)))
    with pytest.raises(UnavailableError, match='replica "r2" of a hub runs on this database'):
        restore(tmp_path / "hub.zip", databases["postgres"].url, replaces=True)


async def test_a_damaged_backup_is_told_before_anything_is_touched(databases: dict[str, SqlDatabase], tmp_path: Path) -> None:
    async with lived(databases["sqlite"]):
        backed_up(databases["sqlite"].url, tmp_path / "hub.zip")
    whole = (tmp_path / "hub.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidError, match="no backup of a hub, or is cut off"):
        restore(tmp_path / "cut.zip", f"sqlite:///{tmp_path / 'other.db'}")
    rewritten(tmp_path / "hub.zip", tmp_path / "changed.zip", "tables/objects.jsonl", b"edge", b"evil")
    with pytest.raises(InvalidError, match="its table objects is not what was written"):
        restore(tmp_path / "changed.zip", f"sqlite:///{tmp_path / 'other.db'}")
    rewritten(tmp_path / "hub.zip", tmp_path / "newer.zip", MANIFEST, f'"schema": "{HEAD}"'.encode(), b'"schema": "9999"')
    with pytest.raises(InvalidError, match="restore it with that release"):
        restore(tmp_path / "newer.zip", f"sqlite:///{tmp_path / 'other.db'}")
    assert not (tmp_path / "other.db").exists()


def rewritten(file: Path, new: Path, entry: str, old: bytes, by: bytes) -> None:
    """The backup with something changed in one entry."""
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(new, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            assert name != entry or old in content
            target.writestr(name, content.replace(old, by) if name == entry else content)


async def test_no_backup_is_overwritten_and_none_is_left_half_made(databases: dict[str, SqlDatabase], tmp_path: Path) -> None:
    file = tmp_path / "hub.zip"
    with pytest.raises(InvalidError, match="no hub's database"):
        backed_up(databases["sqlite"].url, file)
    assert found(tmp_path, "*.zip*") + found(tmp_path, ".*.new") == []
    async with lived(databases["sqlite"]) as store:
        manifest = backed_up(databases["sqlite"].url, file)
        with untouched(file), pytest.raises(AlreadyExistsError, match="name another file"):
            backed_up(databases["sqlite"].url, file)
        assert file.stat().st_mode & 0o077 == 0
        note_backup(databases["sqlite"].url, manifest.made)
        assert await store.read(lambda tx: tx.facts.get(BACKUP_MADE)) == manifest.made


async def test_every_table_of_the_schema_is_in_a_backup(databases: dict[str, SqlDatabase], tmp_path: Path) -> None:
    async with lived(databases["sqlite"]):
        manifest = backed_up(databases["sqlite"].url, tmp_path / "hub.zip")
    assert {entry.name for entry in manifest.tables} == set(schema.metadata.tables) - {inventory.name}
    engine = writing_engine(parse_url(databases["sqlite"].url))
    with engine.begin() as connection:
        for entry in manifest.tables:
            rows = connection.execute(select(schema.metadata.tables[entry.name])).all()
            assert entry.rows == len(rows), entry.name
    engine.dispose()
