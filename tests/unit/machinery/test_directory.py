"""A data directory: private, owned by one, written whole."""

import stat
from pathlib import Path

import pytest

from machinery.directory import DataDirectory
from machinery.errors import UnavailableError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_start_makes_it_private(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "a" / "muster", "hub") as directory:
        assert mode(directory.path) == 0o700
        assert mode(directory.path / "hub.lock") == 0o600


def test_a_second_program_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with (
        DataDirectory(tmp_path, "hub"),
        pytest.raises(UnavailableError, match=r"in use by another hub \(process \d+\)"),
        DataDirectory(tmp_path, "hub"),
    ):
        pass
    with DataDirectory(tmp_path, "hub"):
        pass


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    path = tmp_path / "muster"
    path.write_text("")
    with pytest.raises(UnavailableError, match="is a file"), DataDirectory(path, "hub"):
        pass


def test_a_place_where_nothing_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UnavailableError, match="cannot be made: Not a directory"),
        DataDirectory(tmp_path / "file" / "x", "hub"),
    ):
        pass


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "hub.lock").mkdir()
    with pytest.raises(UnavailableError, match="cannot be written"), DataDirectory(tmp_path, "hub"):
        pass


def test_a_file_is_private_replaced_whole_and_read_back(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "hub") as directory:
        assert directory.read("admin.kubeconfig") is None
        directory.write("admin.kubeconfig", b"one")
        path = directory.write("admin.kubeconfig", b"two")
        assert (directory.read("admin.kubeconfig"), mode(path)) == (b"two", 0o600)
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["admin.kubeconfig", "hub.lock"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with DataDirectory(tmp_path, "hub") as directory, pytest.raises(UnavailableError, match="taken cannot be written"):
        directory.write("taken", b"")
