"""How a request says which moment it asks for."""

from datetime import UTC, datetime, timedelta

import pytest

from machinery.apiserver.past import parse_at
from machinery.errors import BadRequestError

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("123", 123),
        ("2026-11-01T12:00Z", datetime(2026, 11, 1, 12, tzinfo=UTC)),
        ("2026-11-01T12:00:30.5+02:00", datetime(2026, 11, 1, 10, 0, 30, 500_000, tzinfo=UTC)),
        ("-2h", NOW - timedelta(hours=2)),
        ("-1d12h", NOW - timedelta(hours=36)),
        ("2026-11-22T12:00:59Z", NOW),
    ],
)
def test_a_moment_is_an_instant_a_time_ago_or_a_revision(text: str, expected: datetime | int) -> None:
    assert parse_at(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("yesterday", "give a time such as"),
        ("2h", "give a time such as"),
        ("1" * 30, "cannot be read"),
        ("-99999999999d", "give a time such as"),
        ("2026-11-01T12:00", "time zone"),
        ("2026-11-22T12:02Z", "has not come yet: here it is 2026-11-22T12:00:00Z"),
        ("٣", "give a time such as"),
    ],
)
def test_what_is_no_moment_is_refused_with_what_would_be(text: str, word: str) -> None:
    with pytest.raises(BadRequestError, match=word):
        parse_at(text, NOW)
