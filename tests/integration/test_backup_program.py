"""`hub backup` and `hub restore` as an operator types them: words, exit codes, keys, and what is left alone."""

import asyncio
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hub.__main__ import main
from hub.api.certificates import Lifetimes
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import Made
from hub.replica.installation import settle
from hub.replica.keys import create_keys
from hub.store import SqlStore
from hub.store.backup.archive import MANIFEST, PROOF, ArchiveWriter
from hub.store.backup.backup import Snapshot, write_tables
from hub.store.engine.file_lock import sole_user
from machinery.pki.encryption import Seal
from tests.contract.test_store_backup import rewritten
from tests.fakes.databases import migrated

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
    await store.run(authorities.adopt, Made((folder / "ca.crt").read_bytes(), None))
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
    assert "keys, sealed with the passphrase: ca.crt, ca.key, secrets.key, token-" in answer.output
    for secret in keys(hub).values():
        assert secret.strip().splitlines()[1] not in file.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    answer = run(elsewhere, "restore", file, sealed)
    assert answer.exit_code == 0, answer.output
    assert "is restored as it was at" in answer.output
    assert "revocations of certificates after" in answer.output
    assert "--crl" in answer.output
    assert keys(elsewhere) == keys(hub)
    assert {path.stat().st_mode & 0o077 for path in elsewhere.iterdir()} == {0}


def test_what_becomes_of_the_keys_is_asked_and_without_them_the_restored_hub_waits(hub: Path, tmp_path: Path) -> None:
    file, sealed = tmp_path / "hub.zip", f"--passphrase-file={tmp_path / 'passphrase'}"
    for flags in ((), (sealed, "--without-keys")):
        ends(run(hub, "backup", file, *flags), 1, "say what becomes of the hub's keys")
    assert not file.exists()
    ends(run(hub, "backup", file, "--without-keys"), 0, "keep a copy of")
    ends(run(tmp_path / "elsewhere", "restore", file, "--unverified"), 0, "put them there before it starts")
    ends(run(tmp_path / "third", "restore", file, sealed), 1, "has no keys in it")
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
    assert (
        "do not open with this passphrase" in run(elsewhere, "restore", file, f"--passphrase-file={tmp_path / 'other'}").output
    )
    rewritten(file, tmp_path / "changed.zip", MANIFEST, b'"revision": 0', b'"revision": 1')
    assert "was changed after it was made" in run(elsewhere, "restore", tmp_path / "changed.zip", sealed).output
    assert not (elsewhere / "hub.db").exists()


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
    assert "was changed after it was made" in run(elsewhere, "restore", changed).output
    assert "nothing shows who made the backup" in run(elsewhere, "restore", unproven).output
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
    with sole_user(f"sqlite:///{hub / 'hub.db'}"):
        ends(run(hub, "restore", file, sealed, "--replace"), 1, "in use by another hub")
        assert run(hub, "backup", tmp_path / "again.zip", sealed).exit_code == 0, "a backup is made while it runs"
    assert run(hub, "restore", file, sealed, "--replace").exit_code == 0
    assert list(hub.glob("hub.db.before-restore.*"))


def test_keys_that_come_or_go_while_the_rows_are_read_are_in_the_backup(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
