"""The keys of tokens in the data directory: made, kept, exchanged, forgotten in time, and never anybody else's to read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hub.issuer import exchange_token_keys, read_token_keys
from machinery.directory import DataDirectory
from machinery.errors import InvalidError
from machinery.pki import TokenKeys

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLAIMS = {"sub": "ann"}


def open_token_keys(directory: DataDirectory, now: datetime) -> TokenKeys:
    """As a hub that is alone opens them."""
    exchange_token_keys(directory, now)
    return TokenKeys([each.key for each in read_token_keys(directory)])


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("token-*"))


def test_the_first_start_makes_a_private_key_and_later_ones_keep_it(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "hub") as directory:
        token = open_token_keys(directory, NOW).sign(CLAIMS)
        assert files(tmp_path) == ["token-20260101T000000Z.key"]
        assert (tmp_path / files(tmp_path)[0]).stat().st_mode & 0o777 == 0o600
        assert open_token_keys(directory, NOW + timedelta(days=90)).verified(token) == CLAIMS
        assert len(files(tmp_path)) == 1


def test_an_old_key_signs_no_more_and_verifies_until_its_last_token_has_ended(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "hub") as directory:
        old = open_token_keys(directory, NOW).sign(CLAIMS)
        later = NOW + timedelta(days=90, seconds=1)
        exchanged = open_token_keys(directory, later)
        assert exchanged.verified(old) == CLAIMS
        assert exchanged.sign(CLAIMS).split(".")[0] != old.split(".")[0]
        assert open_token_keys(directory, NOW + timedelta(days=90 + 366)).verified(old) == CLAIMS
        assert open_token_keys(directory, NOW + timedelta(days=90 + 366, seconds=1)).verified(old) is None
        assert "token-20260101T000000Z.key" not in files(tmp_path)


def test_a_key_that_cannot_be_read_stops_the_start_and_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "token-20260101T000000Z.key").write_text("canary")
    (tmp_path / "token-other.key").write_text("not ours")
    with DataDirectory(tmp_path, "hub") as directory, pytest.raises(InvalidError) as told:
        open_token_keys(directory, NOW)
    assert "canary" not in told.value.message
