"""What becomes of a live document when a configuration is laid over it."""

from typing import Any

import pytest

from machinery.managedfields.merging import merge
from tests.fakes.managedfields import STRUCTURE


def named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


@pytest.mark.parametrize(
    ("live", "config", "merged"),
    [
        ({"number": 1, "text": "a"}, {"number": 2}, {"number": 2, "text": "a"}),
        ({"inner": {"left": "a"}}, {"inner": {"right": "b"}}, {"inner": {"left": "a", "right": "b"}}),
        ({"inner": {"left": "a"}}, {"inner": {}}, {"inner": {"left": "a"}}),
        ({"inner": {"left": "a"}}, {"inner": None}, {"inner": {"left": "a"}}),
        ({"inner": {}}, {"inner": None}, {"inner": None}),
        ({"text": "a"}, {"text": None}, {"text": None}),
        ({"selector": {"a": "1"}}, {"selector": {"b": "2"}}, {"selector": {"b": "2"}}),
        ({"whole": ["a"]}, {"whole": ["b"]}, {"whole": ["b"]}),
        ({"whole": ["a"]}, {"whole": []}, {"whole": []}),
        ({"set": ["a", "b"]}, {"set": ["c", "a"]}, {"set": ["c", "a", "b"]}),
        ({"set": ["a"]}, {"set": []}, {"set": ["a"]}),
        ({"open": {"a": {"b": 1}}}, {"open": {"a": {"c": 2}}}, {"open": {"a": {"b": 1, "c": 2}}}),
        ({"open": {"a": {"b": 1}}}, {"open": {"a": 5}}, {"open": {"a": 5}}),
        ({"open": {"a": 5}}, {"open": {"a": {"b": 1}}}, {"open": {"a": {"b": 1}}}),
        (
            {"list": [{"name": "a", "value": 1, "tags": ["x"]}]},
            {"list": [{"name": "a", "value": 2, "tags": ["y"]}]},
            {"list": [{"name": "a", "value": 2, "tags": ["x", "y"]}]},
        ),
        (
            {"ports": [{"name": "a", "value": 1}]},
            {"ports": [{"name": "a", "protocol": "TCP", "value": 2}, {"name": "a", "protocol": "UDP"}]},
            {"ports": [{"name": "a", "protocol": "TCP", "value": 2}, {"name": "a", "protocol": "UDP"}]},
        ),
        (
            {"list": [{"name": "a", "value": 1}, {"name": "a", "value": 2}, {"name": "b"}]},
            {"list": [{"name": "a", "value": 3}]},
            {"list": [{"name": "a", "value": 3}, {"name": "b"}]},
        ),
        (
            {"list": [{"name": "a", "value": 1}, {"name": "a", "value": 2}]},
            {"list": [{"name": "b"}]},
            {"list": [{"name": "a", "value": 1}, {"name": "a", "value": 2}, {"name": "b"}]},
        ),
    ],
)
def test_what_the_configuration_says_wins_and_the_rest_stays(
    live: dict[str, Any], config: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert merge(STRUCTURE, live, config) == merged


@pytest.mark.parametrize(
    ("live", "config", "merged"),
    [
        ("abc", "c", "abc"),
        ("abc", "d", "abcd"),
        ("abc", "ca", "bca"),
        ("abc", "xb", "axbc"),
        ("abcd", "dxb", "acdxb"),
        ("abc", "cba", "cba"),
        ("", "ba", "ba"),
        ("ab", "yaxb", "yaxb"),
        ("abxy", "ba", "bxya"),
    ],
)
def test_entries_follow_the_configurations_order_and_others_keep_their_place(live: str, config: str, merged: str) -> None:
    result = merge(STRUCTURE, {"list": named(*live), "set": list(live)}, {"list": named(*config), "set": list(config)})

    assert ["".join(entry["name"] for entry in result["list"]), "".join(result["set"])] == [merged, merged]
