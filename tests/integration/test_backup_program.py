"""The commands of a hub that is not running: backup, restore and doctor, their words and exit codes."""

import asyncio
import sqlite3
import zipfile
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hub.__main__ import main
from hub.api.certificates import Lifetimes
from hub.api.hubreplicas import LOST_AFTER, Load, Replica
from hub.commands.doctor import DoctorFinding, DoctorState, broken, database, findings_of
from hub.commands.doctor.database import DatabaseState
from hub.extensions.settings import load
from hub.ports import BACKUP_MADE, HUB_ID
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import NewAuthority
from hub.replica.installation import SUFFIX, settle
from hub.replica.keys import AUTHORITY, create_keys, create_next_authority
from hub.store import SqlStore
from hub.store.backup.archive import MANIFEST, PROOF, ArchiveWriter
from hub.store.backup.backup import Snapshot, write_tables
from hub.store.engine.engine import parse_url
from hub.store.engine.file_lock import database_lock
from hub.store.migrate import HEAD, migrate_database
from machinery import pki
from machinery.election.lock import LockRecord
from machinery.errors import InvalidError, UnavailableError
from machinery.pki.encryption import Seal
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal
from tests.contract.test_store_backup import rewritten
from tests.fakes.databases import migrated
from tests.fakes.next_release import CONTRACTED, next_release

WORDS = "correct horse battery staple"


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """The data directory of a hub that is not running."""
    folder = tmp_path / "hub"
    create_keys(folder, Lifetimes(), datetime.now(UTC))
    asyncio.run(first_start(folder))
    (tmp_path / "passphrase").write_text(f"{WORDS}\nanother line\n")
    return folder


async def first_start(folder: Path) -> None:
    store = SqlStore(f"sqlite:///{migrated(folder / 'hub.db')}", Seal.parse((folder / "secrets.key").read_bytes()))
    await store.open()
    await store.run(settle)
    await store.run(authorities.adopt, NewAuthority((folder / "ca.crt").read_bytes(), None))
    await store.close()


def run(folder: Path, command: str, *words: str | Path) -> Result:
    return CliRunner().invoke(main, [command, *map(str, words), f"--data-dir={folder}"])


def ends(answer: Result, code: int, words: str) -> None:
    assert (answer.exit_code, words in answer.output) == (code, True), answer.output


def keys(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".key", ".crt")}


def test_a_hub_and_its_keys_go_into_a_file_and_come_out_elsewhere(hub: Path, tmp_path: Path) -> None:
    file, sealed = tmp_path / "hub.zip", f"--passphrase-file={tmp_path / 'passphrase'}"
    answer = run(hub, "backup", file, sealed)
    assert answer.exit_code == 0, answer.output
    assert "keys, encrypted with the passphrase: ca.crt, ca.key, secrets.key, token-" in answer.output
    for secret in keys(hub).values():
        assert secret.strip().splitlines()[1] not in file.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    migrated(elsewhere / "hub.db").chmod(0o600)  # a database without a hub is replaced
    answer = run(elsewhere, "restore", file, sealed)
    assert answer.exit_code == 0, answer.output
    assert "is restored as it was at" in answer.output
    assert "revocations of certificates after" in answer.output
    assert "--crl" in answer.output
    assert (keys(elsewhere), {path.stat().st_mode & 0o077 for path in elsewhere.iterdir()}) == (keys(hub), {0})


def test_a_backup_is_recorded_when_it_is_made_or_once_it_is_safe(hub: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(hub / "hub.db")) as connection:
        recorded = partial(connection.execute, "SELECT value FROM facts WHERE name = ?", (BACKUP_MADE,))
        for name, record, changes in (("1", "now", True), ("2", "later", False), ("2", "only", True)):
            before = recorded().fetchone()
            ends(run(hub, "backup", tmp_path / name, "--without-keys", f"--record={record}"), 0, str(tmp_path / name))
            assert (recorded().fetchone() != before) is changes, record


def test_what_becomes_of_the_keys_is_asked_and_without_them_the_restored_hub_waits(hub: Path, tmp_path: Path) -> None:
    file, sealed = tmp_path / "hub.zip", f"--passphrase-file={tmp_path / 'passphrase'}"
    for flags in ((), (sealed, "--without-keys")):
        ends(run(hub, "backup", file, *flags), 1, "choose what happens to the hub's keys")
    assert not file.exists()
    ends(run(hub, "backup", file, "--without-keys"), 0, "keep a copy of")
    ends(run(tmp_path / "elsewhere", "restore", file, "--unverified"), 0, "put them there before the start")
    ends(run(tmp_path / "third", "restore", file, sealed), 1, "has no keys")
    grouped = CliRunner(env={"HUB_API_GROUP_SUFFIX": "example.org"})
    answer = grouped.invoke(main, ["restore", str(file), f"--data-dir={tmp_path / 'fourth'}"])
    ends(answer, 1, "--api-group-suffix open-cluster-management.io")
    (tmp_path / "passphrase").write_text("short\n")
    ends(run(hub, "backup", tmp_path / "short.zip", sealed), 1, "12 characters at least")


def test_keys_open_with_their_passphrase_and_with_their_backup_alone(hub: Path, tmp_path: Path) -> None:
    file, elsewhere = tmp_path / "hub.zip", tmp_path / "elsewhere"
    sealed = f"--passphrase-file={tmp_path / 'passphrase'}"
    assert run(hub, "backup", file, sealed).exit_code == 0
    assert "give the passphrase" in run(elsewhere, "restore", file).output
    (tmp_path / "other").write_text("another passphrase\n")
    assert "this passphrase does not decrypt" in run(elsewhere, "restore", file, f"--passphrase-file={tmp_path}/other").output
    rewritten(file, tmp_path / "changed.zip", MANIFEST, b'"revision": 0', b'"revision": 1')
    assert "was changed after it was created" in run(elsewhere, "restore", tmp_path / "changed.zip", sealed).output
    assert not (elsewhere / "hub.db").exists()


def test_a_file_with_the_lists_of_several_cas_is_read_to_its_end(hub: Path, tmp_path: Path) -> None:
    file, sealed, lists = tmp_path / "hub.zip", f"--passphrase-file={tmp_path / 'passphrase'}", tmp_path / "hub.crl.pem"
    assert run(hub, "backup", file, sealed).exit_code == 0
    authority, now = pki.CertificateAuthority(*((hub / name).read_bytes() for name in ("ca.crt", "ca.key"))), datetime.now(UTC)
    made = [authority.sign_list(pki.RevocationList(number, now, now + timedelta(days=1), ())) for number in (7, 8)]
    lists.write_bytes(b"".join(map(pki.list_to_pem, made)))  # as `hubctl get crl -o pem` prints them
    answer = run(tmp_path / "elsewhere", "restore", file, sealed, f"--crl={lists}")
    assert (answer.exit_code, "list 7 of" in answer.output, "list 8 of" in answer.output) == (0, True, True), answer.output


def test_a_backup_without_keys_is_restored_as_it_was_made_or_unverified(hub: Path, tmp_path: Path) -> None:
    file, changed, elsewhere = (tmp_path / name for name in ("hub.zip", "changed.zip", "elsewhere"))
    assert run(hub, "backup", file, "--without-keys").exit_code == 0
    rewritten(file, changed, MANIFEST, b'"revision": 0', b'"revision": 1')
    unproven = tmp_path / "unproven.zip"
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(unproven, "w") as target:
        for name in source.namelist():
            if name != PROOF:
                target.writestr(name, source.read(name))
    assert "put it there first" in run(elsewhere, "restore", file).output
    (elsewhere / "secrets.key").write_bytes(Seal.generate().written())
    assert "made with another secrets.key" in run(elsewhere, "restore", file).output
    (elsewhere / "secrets.key").write_bytes((hub / "secrets.key").read_bytes())
    assert "was changed after it was created" in run(elsewhere, "restore", changed).output
    assert "no proof of its origin" in run(elsewhere, "restore", unproven).output
    assert not (elsewhere / "hub.db").exists()
    assert run(elsewhere, "restore", file).exit_code == 0
    assert run(tmp_path / "another", "restore", unproven, "--unverified").exit_code == 0
    (hub / "secrets.key").unlink()
    ends(run(hub, "backup", tmp_path / "again.zip", "--without-keys"), 0, "its restore needs --unverified")


def test_nothing_is_restored_over_other_keys_or_under_a_hub_that_runs(hub: Path, tmp_path: Path) -> None:
    file, sealed = tmp_path / "hub.zip", f"--passphrase-file={tmp_path / 'passphrase'}"
    assert run(hub, "backup", file, sealed).exit_code == 0
    other = tmp_path / "other"
    create_keys(other, Lifetimes(), datetime.now(UTC))
    before = keys(other)
    ends(run(other, "restore", file, sealed), 1, "keys are never replaced")
    assert keys(other) == before
    ends(run(hub, "restore", file, sealed), 1, "--replace")
    with database_lock(f"sqlite:///{hub / 'hub.db'}"):
        ends(run(hub, "restore", file, sealed, "--replace"), 1, "in use by another hub")
        assert run(hub, "backup", tmp_path / "again.zip", sealed).exit_code == 0, "a backup is made while it runs"
    assert run(hub, "restore", file, sealed, "--replace").exit_code == 0
    assert list(hub.glob("hub.db.before-restore.*"))


def test_keys_that_come_or_go_during_a_backup_are_in_it(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CA's key is written before its row, and its row may be there a moment later; one that retires loses its key."""
    (hub / "ca-going.key").write_bytes(b"going")

    def meanwhile(url: str, writer: ArchiveWriter) -> Snapshot:
        (hub / "ca-going.key").unlink()
        (hub / "ca-coming.key").write_bytes(b"coming")
        return write_tables(url, writer)

    monkeypatch.setattr("hub.commands.backup.write_tables", meanwhile)
    answer = run(hub, "backup", tmp_path / "hub.zip", f"--passphrase-file={tmp_path / 'passphrase'}")
    assert answer.exit_code == 0, answer.output
    assert "ca-coming.key" in answer.output
    assert "ca-going.key" in answer.output


NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE = Replica("hub-0", "here", "i1", "1.0", "g", "h", NOW, NOW, sessions=3, ready=True)
LEASE, SHIFT = timedelta(seconds=15), timedelta(seconds=3)
LEADER = LockRecord("hub-0", "i1", 4, 1, LEASE, NOW, NOW, "7")
FACTS = {AUTHORITY: None, SUFFIX: "open-cluster-management.io", HUB_ID: "b2f1"}
WELL = DatabaseState(NOW, FACTS, [ONE], LEADER)


def judged(seen: DatabaseState, folder: Path, *, now: datetime = NOW) -> dict[str, DoctorFinding]:
    """What is not well, by name; the last of a name."""
    found = database.judged(seen, load({"data_dir": folder}, None, {}), ManualClock(now), timedelta(milliseconds=3))
    return {each.name: each for each in found if each.state is not DoctorState.WELL}


def test_findings_about_clocks_groups_replicas_and_leaders(tmp_path: Path) -> None:
    assert judged(WELL, tmp_path) == {}
    later = NOW + timedelta(days=1)
    alone = replace(WELL, now=later, replicas=[replace(ONE, seen=later)])
    assert judged(alone, tmp_path, now=later) == {}, "a leader without competitors need not renew"
    for apart, side in ((timedelta(seconds=3), "ahead of"), (-timedelta(seconds=3), "behind")):
        assert f"this machine's is 3s {side} the database's" in judged(WELL, tmp_path, now=NOW + apart)["clock"].message
    gone = replace(WELL, now=NOW + LOST_AFTER * 2)
    lost = replace(ONE, name="hub-1", seen=NOW - LOST_AFTER * 2)
    versions = replace(WELL, replicas=[ONE, replace(ONE, name="hub-1", version="1.1")])
    grouped = replace(WELL, facts={**FACTS, SUFFIX: "example.org"})
    ahead, behind = (replace(WELL, replicas=[replace(ONE, load=Load(0, 0.1, 2**20, each))]) for each in (SHIFT, -SHIFT))
    rows = (
        (ahead, "clock", DoctorState.BROKEN, "the replica hub-0 is 3s ahead of"),
        (behind, "clock", DoctorState.BROKEN, "the replica hub-0 is 3s behind"),
        (grouped, "identity", DoctorState.BROKEN, "--api-group-suffix example.org"),
        (replace(WELL, replicas=[], leader=None), "replicas", DoctorState.BROKEN, ""),
        (replace(WELL, replicas=[], leader=None), "leader", DoctorState.BROKEN, ""),
        (gone, "replicas", DoctorState.BROKEN, "no replica has updated its row for ten seconds"),
        (gone, "leader", DoctorState.BROKEN, "has not renewed its lease"),
        (replace(WELL, leader=replace(LEADER, holder="")), "leader", DoctorState.BROKEN, "no replica is the leader"),
        (versions, "replicas", DoctorState.WARNING, "hub-0 1.0, hub-1 1.1"),
        (replace(WELL, replicas=[ONE, lost]), "replicas", DoctorState.WARNING, "lost: hub-1"),
        (replace(WELL, replicas=[replace(ONE, drained=True)]), "replicas", DoctorState.BROKEN, "uncordon"),
    )
    for seen, name, state, words in rows:
        found = judged(seen, tmp_path, now=seen.now)[name]
        assert (found.state, words in f"{found.message} {found.advice}") == (state, True), found


def test_a_rotated_ca_is_known_to_doctor_and_restore(hub: Path, tmp_path: Path) -> None:
    known = pki.parse_certificate(create_next_authority(hub, Lifetimes(), datetime.now(UTC))[0].read_bytes()).key_hash
    with closing(sqlite3.connect(hub / "hub.db")) as connection, connection:
        connection.execute("UPDATE facts SET value = ? WHERE name = ?", (known, AUTHORITY))
    for gone in ("none", "ca.crt", "ca.key"):
        (hub / gone).unlink(missing_ok=True)
        printed = run(hub, "doctor").output
        assert ("the CA ends at" in printed, "identity" in printed) == (True, False), printed
    words = f"--passphrase-file={tmp_path / 'passphrase'}"
    assert run(hub, "backup", tmp_path / "hub.zip", words).exit_code == 0
    answer = run(tmp_path / "elsewhere", "restore", tmp_path / "hub.zip", words)
    assert (answer.exit_code, "put them there" in answer.output) == (0, False), answer.output


def test_a_schema_that_is_behind_is_a_warning_and_an_empty_database_is_not_made(tmp_path: Path) -> None:
    migrated(tmp_path / "old.db")
    with next_release(tmp_path):
        old = database.schema(f"sqlite:///{tmp_path / 'old.db'}")
    assert (old.state, old.message) == (DoctorState.WARNING, f'"{HEAD}", 2 behind this release\'s "{CONTRACTED}"')
    none = database.schema(f"sqlite:///{tmp_path / 'none.db'}")
    assert (none.state, (tmp_path / "none.db").exists()) == (DoctorState.BROKEN, False)
    migrate_database(parse_url(f"sqlite:///{tmp_path / 'new.db'}"))
    assert database.schema(f"sqlite:///{tmp_path / 'new.db'}").state is DoctorState.WELL
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute("UPDATE facts SET value = '9998' WHERE name = 'schema-usable-from'")
    check_refusal(InvalidError, database.schema, f"sqlite:///{tmp_path / 'new.db'}", match="newer than")


async def test_a_look_that_fails_is_a_finding() -> None:
    for error, text in (
        (UnavailableError("the database does not answer"), "the database does not answer"),
        (PermissionError(13, "Permission denied", "/data"), "/data: Permission denied"),
    ):

        async def check(error: Exception = error) -> AsyncIterator[DoctorFinding]:
            for finding in list[DoctorFinding]():
                yield finding
            raise error

        assert await findings_of("database", check, "advice") == [broken("database", text, "advice")]
