"""Silence: exact ends of exact graces."""

from datetime import UTC, datetime, timedelta

import pytest

from hub.domain.lease import expires_at, grace, time_left

START = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO = START - timedelta(days=1)
MINUTE = timedelta(seconds=60)


def test_grace_is_five_durations() -> None:
    assert grace(MINUTE) == timedelta(seconds=300)


@pytest.mark.parametrize(
    ("last", "since", "window", "expected"),
    [
        (START, LONG_AGO, 0, START + timedelta(seconds=300)),
        (START, LONG_AGO, 1, START + timedelta(seconds=301)),
        (LONG_AGO, START, 0, START + timedelta(seconds=300)),
        (None, START, 0, START + timedelta(seconds=300)),
    ],
)
def test_silence_begins_a_grace_after_the_last_beat_or_the_start(
    last: datetime | None, since: datetime, window: int, expected: datetime
) -> None:
    assert expires_at(last, MINUTE, window=timedelta(seconds=window), since=since) == expected


def test_expiry_is_exact() -> None:
    microsecond = timedelta(microseconds=1)
    assert time_left(START, START - microsecond) == microsecond
    assert not time_left(START, START)
    assert not time_left(START, START + microsecond)
