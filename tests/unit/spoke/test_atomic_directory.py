import os
import resource
import stat
import threading
from pathlib import Path

import pytest

from machinery.errors import InvalidError
from spoke.credentials import AtomicDirectory
from spoke.credentials.directory import DATA


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_files_are_for_their_owner_only_even_under_a_lax_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        AtomicDirectory(tmp_path / "d").replace({"tls.key": b"k"})
    finally:
        os.umask(before)
    assert mode(tmp_path / "d") == 0o700
    assert mode((tmp_path / "d" / DATA).resolve()) == 0o700
    assert mode(tmp_path / "d" / "tls.key") == 0o600


def test_a_directory_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o755)
    AtomicDirectory(tmp_path / "d").replace({"a": b"1"})
    assert mode(tmp_path / "d") == 0o700


def test_programs_find_each_key_as_a_file(tmp_path: Path) -> None:
    directory = AtomicDirectory(tmp_path)
    directory.replace({"a": b"1", "b": b"1"})
    directory.replace({"a": b"2", "c": b"2"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == {"a": b"2", "c": b"2"}


def test_nothing_of_earlier_sets_is_left(tmp_path: Path) -> None:
    directory = AtomicDirectory(tmp_path)
    for number in range(5):
        directory.replace({"key": b"%d" % number})
    current = (tmp_path / DATA).readlink().name
    assert names(tmp_path) == {"key", DATA, current}


def test_a_reader_of_the_whole_set_never_sees_a_mix(tmp_path: Path) -> None:
    directory = AtomicDirectory(tmp_path)
    directory.replace({"crt": b"0", "key": b"0"})
    mixes: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen = directory.read()
            if seen.get("crt") != seen.get("key") or not seen:
                mixes.append(seen)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        directory.replace({"crt": b"%d" % number, "key": b"%d" % number})
    done.set()
    reader.join()
    assert mixes == []


def test_a_write_that_fails_leaves_the_old_set_and_no_rubbish(tmp_path: Path) -> None:
    directory = AtomicDirectory(tmp_path)
    directory.replace({"a": b"1"})
    before = names(tmp_path)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))  # as if the disk were full
    try:
        with pytest.raises(OSError, match="too large"):
            directory.replace({"a": b"2" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert names(tmp_path) == before
    assert directory.read() == {"a": b"1"}


@pytest.mark.parametrize("crumb", ["..torn", "..staged"])
def test_what_a_killed_writer_left_is_swept_away(tmp_path: Path, crumb: str) -> None:
    directory = AtomicDirectory(tmp_path)
    directory.replace({"a": b"1"})
    if crumb == "..staged":
        (tmp_path / crumb).symlink_to("..data/gone")
    else:
        (tmp_path / crumb).mkdir()
        (tmp_path / crumb / "a").write_bytes(b"half")
    directory.replace({"a": b"2"})
    assert crumb not in names(tmp_path)
    assert directory.read() == {"a": b"2"}


def test_a_missing_link_of_a_torn_write_is_made_again(tmp_path: Path) -> None:
    directory = AtomicDirectory(tmp_path)
    directory.replace({"a": b"1"})
    (tmp_path / "a").unlink()
    directory.replace({"a": b"1"})
    assert (tmp_path / "a").read_bytes() == b"1"


def test_a_directory_in_use_for_something_else_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidError, match="holds other files"):
        AtomicDirectory(tmp_path).replace({"a": b"1"})
    assert names(tmp_path) == {"thesis.txt"}


def test_a_file_that_others_added_later_is_left_alone(tmp_path: Path) -> None:
    directory = AtomicDirectory(tmp_path)
    directory.replace({"a": b"1"})
    (tmp_path / "note").write_text("mine")
    directory.replace({"a": b"2"})
    assert (tmp_path / "note").read_text() == "mine"
    assert directory.read() == {"a": b"2"}


@pytest.mark.parametrize("key", ["", "..", "..data", ".", "a/b", "../evil", "a\n", "k" * 254, "é"])
def test_a_key_that_no_secret_can_have_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(InvalidError, match="cannot be a file"):
        AtomicDirectory(tmp_path / "d").replace({key: b"1"})
    assert not (tmp_path / "d").exists()
