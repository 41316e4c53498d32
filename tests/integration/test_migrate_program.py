"""`hub migrate` and `hub migrate --check`: words, exit codes, and nothing touched where nothing is to be."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hub.__main__ import main
from hub.store.engine.file_lock import sole_user
from hub.store.migrate import HEAD
from hub.store.migrate_url import copies
from machinery.errors import UnavailableError
from tests.fakes.databases import migrated
from tests.integration.test_store_upgrades import LEFT, left_behind


def migrate(folder: Path, *flags: str) -> Result:
    return CliRunner().invoke(main, ["migrate", f"--data-dir={folder}", *flags])


def change(folder: Path, command: str, *values: str) -> None:
    with closing(sqlite3.connect(folder / "hub.db")) as connection, connection:
        connection.execute(command, values)


def test_a_database_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    answer = migrate(tmp_path, "--check")
    assert answer.exit_code == 1
    assert "the database was empty; to run, in this order:\n  0001  The first schema." in answer.output
    assert not (tmp_path / "hub.db").exists()


def test_what_is_to_be_migrated_is_listed_then_done_then_nothing_is_to_do(tmp_path: Path) -> None:
    left_behind(tmp_path / "hub.db", LEFT[1])
    answer = migrate(tmp_path, "--check")
    assert answer.exit_code == 1
    assert 'had schema "0005"; to run, in this order:\n  0006  ' in answer.output
    assert copies(tmp_path / "hub.db") == []
    answer = migrate(tmp_path)
    assert answer.exit_code == 0
    assert f'the database had schema "0005" and now has schema "{HEAD}"' in answer.output
    assert len(copies(tmp_path / "hub.db")) == 1
    for flags in (("--check",), ()):
        answer = migrate(tmp_path, *flags)
        assert answer.exit_code == 0
        assert f'has schema "{HEAD}", which is this release\'s: nothing is to do' in answer.output


def test_a_schema_that_is_too_new_is_refused(tmp_path: Path) -> None:
    migrated(tmp_path / "hub.db")
    change(tmp_path, "UPDATE alembic_version SET version_num = '9999'")
    for usable_from, code, words in (("9998", 2, "this release cannot run on it"), (HEAD, 0, "which can run on it")):
        change(tmp_path, "UPDATE facts SET value = ? WHERE name = 'schema-usable-from'", usable_from)
        for flags in (("--check",), ()):
            answer = migrate(tmp_path, *flags)
            assert (answer.exit_code, words in answer.output) == (code, True), answer.output


def test_a_database_that_a_hub_uses_is_not_migrated_under_it(tmp_path: Path) -> None:
    migrated(tmp_path / "hub.db")
    with sole_user(f"sqlite:///{tmp_path}/hub.db"):
        answer = migrate(tmp_path)
        assert answer.exit_code == 2
        assert "is in use by another hub" in answer.output
        assert migrate(tmp_path, "--check").exit_code == 0


def test_the_same_file_by_another_name_has_one_user(tmp_path: Path) -> None:
    (tmp_path / "hub.db").touch()
    (tmp_path / "link.db").symlink_to("hub.db")
    (tmp_path / "folder").symlink_to(tmp_path)
    with sole_user(f"sqlite:///{tmp_path}/hub.db"):
        for name in ("hub.db", "link.db", "folder/hub.db", "folder/link.db"):
            again = sole_user(f"sqlite:///{tmp_path}/{name}")
            with pytest.raises(UnavailableError, match="give all replicas one PostgreSQL database"), again:
                pytest.fail("there are two")
    with sole_user(f"sqlite:///{tmp_path}/link.db"), sole_user(f"sqlite:///{tmp_path}/other.db"):
        pass


def test_a_database_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_DATABASE_URL", "postgresql://hub:secret@127.0.0.1:1/hub")
    for flags in (("--check",), ()):
        answer = migrate(tmp_path, *flags)
        assert answer.exit_code == 2
        assert "hub: the database does not answer" in answer.output
        assert "secret" not in answer.output
