"""How hubctl shows a change, and reads a moment."""

from datetime import UTC, datetime

import pytest

from hub.cli.failures import CommandError
from hub.cli.history import lines
from hub.cli.moments import moment

CONDITION = "status.conditions[ManagedClusterConditionAvailable]"
CHANGE = {
    "time": "2026-11-01T12:00:00.123456Z",
    "revision": "7",
    "actor": "system:hub:lease",
    "type": "MODIFIED",
    "fields": [
        {"path": f"{CONDITION}.status", "before": "True", "after": "Unknown"},
        {"path": f"{CONDITION}.lastTransitionTime", "before": "a", "after": "b"},
        {"path": "spec.taints[gone]", "before": {"key": "gone"}},
        {"path": "metadata.labels.x", "after": "\x1b[31m" + "y" * 99},
    ],
}


def test_a_change_is_a_line_per_field_and_the_first_says_who_and_when() -> None:
    shown = list(lines(CHANGE, wide=False))
    assert [row[:3] for row in shown] == [("2026-11-01T12:00:00Z", "7", "system:hub:lease"), ("", "", ""), ("", "", "")]
    assert [row[3] for row in shown] == [
        f"{CONDITION}.status: True -> Unknown",
        'spec.taints[gone]: - {"key": "gone"}',
        "metadata.labels.x: +  [31m" + "y" * 52 + "...",
    ]
    assert [row[3].partition(":")[0] for row in lines(CHANGE, wide=True)][1] == f"{CONDITION}.lastTransitionTime"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"type": "ADDED", "fields": [{"path": "spec", "after": {}}]}, ["added"]),
        ({"type": "DELETED", "fields": []}, ["deleted"]),
        ({"type": "MODIFIED", "fields": []}, ["(written again)"]),
        ({"type": "MODIFIED", "fields": [{"path": "a.message", "before": "x", "after": "y"}]}, ["(messages)"]),
        ({"type": "MODIFIED", "fields": [{"path": "a", "after": 1}], "more": 3}, ["a: + 1", "... and 3 more fields"]),
    ],
)
def test_every_change_says_something(change: dict[str, object], expected: list[str]) -> None:
    assert [row[3] for row in lines({**CHANGE, **change}, wide=False)] == expected


def test_moments_are_read_as_people_give_them() -> None:
    assert [moment(text) for text in ("", "now", "17", "2h", "-2h", "1d12h")] == ["", "", "17", "-2h", "-2h", "-1d12h"]
    assert moment("2026-11-01T12:00+02:00") == "2026-11-01T10:00:00.000000Z"
    here = datetime(2026, 11, 1, 12).astimezone(UTC)
    assert moment("2026-11-01 12:00") == here.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    with pytest.raises(CommandError, match="write a time such as"):
        moment("last tuesday")
