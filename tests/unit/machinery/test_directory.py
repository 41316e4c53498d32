"""A data directory, and documents sealed in it."""

import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from machinery.errors import InvalidError, UnavailableError
from machinery.pki.encryption import HEADER, Seal, header_of
from machinery.runtime.directory import DataDirectory
from tests.checks import check_refusal, check_refusals


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_directory_is_private_owned_by_one_program_and_named_when_unusable(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "a" / "muster", "hub") as directory:
        assert (mode(directory.path), mode(directory.path / "hub.lock")) == (0o700, 0o600)
    file, used = tmp_path / "file", tmp_path / "used"
    file.write_text("")
    (tmp_path / "locked" / "hub.lock").mkdir(parents=True)
    with DataDirectory(used, "hub"):
        for path, text in (
            (used, r"in use by another hub \(process \d+\)"),
            (file, "is a file"),
            (file / "x", "cannot be made: Not a directory"),
            (tmp_path / "locked", "cannot be written"),
        ):
            with pytest.raises(UnavailableError, match=text), DataDirectory(path, "hub"):
                pass
    (used / "taken").mkdir()
    with DataDirectory(used, "hub") as directory, pytest.raises(UnavailableError, match="taken cannot be written"):
        directory.write("taken", b"")

    with DataDirectory(tmp_path / "new", "hub") as directory:
        assert directory.read("admin.kubeconfig") is None
        directory.write("admin.kubeconfig", b"one")
        path = directory.write("admin.kubeconfig", b"two")
        assert (directory.read("admin.kubeconfig"), mode(path)) == (b"two", 0o600)
        assert sorted(entry.name for entry in directory.path.iterdir()) == ["admin.kubeconfig", "hub.lock"]


def test_directory_that_other_users_can_enter_is_named_at_the_start(tmp_path: Path) -> None:
    for directory_mode, warned in ((0o755, True), (0o701, True), (0o770, False), (0o700, False)):
        tmp_path.chmod(directory_mode)
        with capture_logs() as lines, DataDirectory(tmp_path, "hub"):
            pass
        assert [line["advice"] for line in lines] == [f"chmod o-rwx {tmp_path}"] * warned, oct(directory_mode)


OLD, NEW = b"o" * 32, b"n" * 32
PLAIN = b'{"data":{"password":"c3dvcmRmaXNo"}}'
PLACE = "secrets east/login"


def test_sealed_document_opens_only_with_its_key_at_its_place() -> None:
    seal = Seal([NEW])
    sealed = seal.closed(PLAIN, PLACE)
    assert b"password" not in sealed
    assert seal.opened(sealed, PLACE) == PLAIN
    assert seal.closed(PLAIN, PLACE) != seal.closed(PLAIN, PLACE)
    rotated = Seal([NEW, OLD])
    assert rotated.opened(Seal([OLD]).closed(PLAIN, PLACE), PLACE) == PLAIN
    assert rotated.closed(PLAIN, PLACE)[:HEADER] == header_of(NEW) == rotated.header

    sealed = Seal([OLD]).closed(PLAIN, PLACE)
    with pytest.raises(UnavailableError, match=f"{PLACE} is sealed with the key {header_of(OLD)[1:].hex()}, which"):
        Seal([NEW]).opened(sealed, PLACE)
    seal = Seal([NEW])
    check_refusal(UnavailableError, seal.opened, seal.closed(PLAIN, PLACE), "secrets west/login", match="moved there")
    for position in (HEADER, HEADER + 12, -1):
        changed = bytearray(seal.closed(PLAIN, PLACE))
        changed[position] ^= 1
        check_refusal(UnavailableError, seal.opened, bytes(changed), PLACE, match="changed in the database")

    seal = Seal([NEW, OLD])
    again = Seal.parse(seal.written())
    assert (again.header, again.has_key_for(header_of(OLD))) == (header_of(NEW), True)
    texts = (b"", b"# none\n", b"bm90IGxvbmcgZW5vdWdo\n", b"no base64!\n")
    check_refusals(InvalidError, Seal.parse, [(text, "for Secrets") for text in texts])
