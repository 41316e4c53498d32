"""Durations as people write them."""

from datetime import timedelta

import pytest

from machinery.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60s", timedelta(seconds=60)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("30d", timedelta(days=30)),
        ("1.5s", timedelta(seconds=1.5)),
    ],
)
def test_a_duration_is_the_sum_of_its_parts(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "60", "s", "1 minute", "-5s", "1h30", "1e3s", "5M", "99999999999999d"])
def test_anything_else_is_refused_with_the_form_that_is_asked_for(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration: write a number with its unit|longer than any duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["1h30m", "2d", "500ms", "1s", "0s", "1d1h1m1s1ms"])
def test_the_shortest_spelling_reads_back(text: str) -> None:
    assert format_duration(parse_duration(text)) == text
