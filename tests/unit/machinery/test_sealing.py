"""Documents under a seal."""

import pytest

from machinery.errors import InvalidError, UnavailableError
from machinery.sealing import HEADER, Seal, header_of

OLD, NEW = b"o" * 32, b"n" * 32
PLAIN = b'{"data":{"password":"c3dvcmRmaXNo"}}'
PLACE = "secrets east/login"


def test_what_is_sealed_says_nothing_and_opens_again() -> None:
    seal = Seal([NEW])
    sealed = seal.closed(PLAIN, PLACE)
    assert b"password" not in sealed
    assert seal.opened(sealed, PLACE) == PLAIN


def test_the_same_document_is_never_sealed_alike() -> None:
    seal = Seal([NEW])
    assert seal.closed(PLAIN, PLACE) != seal.closed(PLAIN, PLACE)


def test_the_first_key_seals_and_every_key_opens() -> None:
    rotated = Seal([NEW, OLD])
    assert rotated.opened(Seal([OLD]).closed(PLAIN, PLACE), PLACE) == PLAIN
    assert rotated.closed(PLAIN, PLACE)[:HEADER] == header_of(NEW) == rotated.header


def test_a_missing_key_is_named() -> None:
    sealed = Seal([OLD]).closed(PLAIN, PLACE)
    with pytest.raises(UnavailableError, match=f"{PLACE} is sealed with the key {header_of(OLD)[1:].hex()}, which"):
        Seal([NEW]).opened(sealed, PLACE)


def test_what_was_sealed_for_one_object_does_not_open_as_another() -> None:
    seal = Seal([NEW])
    with pytest.raises(UnavailableError, match="moved there"):
        seal.opened(seal.closed(PLAIN, PLACE), "secrets west/login")


@pytest.mark.parametrize("position", [HEADER, HEADER + 12, -1])
def test_a_changed_byte_is_noticed(position: int) -> None:
    seal = Seal([NEW])
    sealed = bytearray(seal.closed(PLAIN, PLACE))
    sealed[position] ^= 1
    with pytest.raises(UnavailableError, match="changed in the database"):
        seal.opened(bytes(sealed), PLACE)


def test_a_file_of_keys_is_read_as_it_was_written() -> None:
    seal = Seal([NEW, OLD])
    again = Seal.parse(seal.written())
    assert (again.header, again.knows(header_of(OLD))) == (header_of(NEW), True)


@pytest.mark.parametrize("text", [b"", b"# none\n", b"bm90IGxvbmcgZW5vdWdo\n", b"no base64!\n"])
def test_a_file_without_good_keys_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidError, match="for Secrets"):
        Seal.parse(text)
