"""Ages as kubectl shows them."""

import pytest

from machinery.apiserver.tables import age_of, human_duration
from machinery.clock import ManualClock

MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (2 * MINUTE, "2m"),
        (5 * MINUTE + 12, "5m12s"),
        (10 * MINUTE, "10m"),
        (59 * MINUTE + 59, "59m"),
        (3 * HOUR, "3h"),
        (3 * HOUR + 20 * MINUTE, "3h20m"),
        (8 * HOUR + 20 * MINUTE, "8h"),
        (47 * HOUR, "47h"),
        (2 * DAY, "2d"),
        (2 * DAY + 5 * HOUR, "2d5h"),
        (8 * DAY + 5 * HOUR, "8d"),
        (400 * DAY, "400d"),
        (2 * 365 * DAY, "2y"),
        (2 * 365 * DAY + DAY, "2y1d"),
        (9 * 365 * DAY + DAY, "9y"),
    ],
)
def test_a_duration_is_shown_in_two_units_at_most(seconds: int, shown: str) -> None:
    assert human_duration(seconds) == shown


def test_an_age_needs_an_instant() -> None:
    now = ManualClock().now()
    assert age_of(None, now) == "<unknown>"
    assert age_of("yesterday", now) == "<invalid>"
    assert age_of("2025-12-31T23:59:00Z", now) == "60s"
