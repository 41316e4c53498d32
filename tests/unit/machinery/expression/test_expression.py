"""The expression language: what is read, what it means, what is refused and where."""

import time
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from machinery.expression import Expression, ExpressionError, Fields, ListOf, MapOf, Type, parse, parse_quantity, parse_version
from machinery.expression.syntax import DEEPEST
from machinery.expression.tokens import LONGEST

FIELDS = Fields(
    {
        "name": Type.TEXT,
        "version": Type.VERSION,
        "memory": Type.QUANTITY,
        "nodes": Type.NUMBER,
        "age": Type.DURATION,
        "accepted": Type.BOOLEAN,
        "labels": MapOf(Type.TEXT),
        "capacity": MapOf(Type.QUANTITY),
        "requester.user": Type.TEXT,
        "requester.groups": ListOf(Type.TEXT),
    }
)
EDGE: dict[str, Any] = {
    "name": "edge-1-ab",
    "version": "v1.29.3+k3s1",
    "memory": "128Gi",
    "nodes": 3,
    "age": timedelta(minutes=30),
    "accepted": True,
    "labels": {"tier": "gold", "example.com/region": "eu"},
    "capacity": {"cpu": "500m", "nvidia.com/gpu": 2},
    "requester.user": "ann",
    "requester.groups": ["admins", "dev"],
}


def of(text: str) -> Expression:
    return parse(text, FIELDS)


@pytest.mark.parametrize(
    "text",
    [
        "version < 1.30 && memory > 64Gi",
        'version == "1.29.3"',
        "version >= v1.29.3",
        "version > 1.29.3-rc.1",
        "1.30 > version",
        "memory == 131072Mi",
        "nodes >= 3",
        "nodes != 2.5",
        "nodes > -1",
        "age < 90m",
        "age >= 0.5h",
        "accepted",
        "accepted == true && true",
        'labels.tier == "gold"',
        "labels[\"example.com/region\"] == 'eu'",
        'capacity["cpu"] == 0.5 && capacity["nvidia.com/gpu"] > 1',
        '"admins" in requester.groups',
        '"tier" in labels && !("owner" in labels)',
        'name in ["a", "edge-1-ab"]',
        "nodes in [1, 3]",
        'requester.user == "ann"',
        'name.startsWith("edge-") && name.endsWith("-ab") && name.contains("-1-")',
        'name.matches("edge-*-??")',
        'labels.tier.matches("g*d")',
        "has(labels.tier) && !has(labels.owner)",
        'has(requester.groups) && (name == "x" || nodes == 3)',
        'false || !false && !(name == "x")',
    ],
)
def test_what_is_so_is_told(text: str) -> None:
    assert of(text).evaluate(EDGE) is True


@pytest.mark.parametrize(
    "text",
    [
        'labels.owner == "ann"',
        'labels.owner != "ann"',
        '!(labels.owner == "ann")',
        'labels.owner in ["ann"]',
        'labels.owner.matches("*")',
        'labels.owner == "ann" || nodes == 4',
        'labels.owner == "ann" && nodes == 3',
        'capacity["memory"] > 1',
    ],
)
def test_what_depends_on_something_missing_is_unknown_and_holds_as_little_as_its_negation(text: str) -> None:
    assert of(text).evaluate(EDGE) is None
    assert not of(text).holds(EDGE)
    assert not of(f"!({text})").holds(EDGE)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ('labels.owner == "ann" && nodes == 4', False),
        ('labels.owner == "ann" || nodes == 3', True),
        ("has(labels.owner)", False),
    ],
)
def test_what_is_missing_does_not_hide_what_is_known(text: str, known: bool) -> None:  # noqa: FBT001 - a table's column
    assert of(text).evaluate(EDGE) is known


@pytest.mark.parametrize(
    "raw", [None, "", "abc", "1.2.3.4", 5, [], {}, True, float("nan"), "9" * 5000, "1e999999999", 10**400, {"a": {}}, [[]]]
)
def test_a_document_of_wrong_types_has_missing_fields_and_fails_nothing(raw: Any) -> None:
    every = "version < 1 || memory > 1 || nodes > 1 || age > 1s || accepted || labels.a == 'x' || 'x' in requester.groups"
    whole = of(f"({every}) && 'x' in labels && has(requester.groups) && name.matches('*a*b')")
    assert whole.evaluate(dict.fromkeys(FIELDS.types, raw)) in (True, False, None)


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("", 1, "there is no condition"),
        ("   ", 1, "there is no condition"),
        ("verson < 1", 1, 'did you mean "version"?'),
        ("nodes < 1 && verson < 1", 14, "there is no field"),
        ('name = "a"', 6, 'write "=="'),
        ("accepted & accepted", 10, 'write "&&"'),
        ('name < "a"', 6, "use == or !="),
        ("accepted > true", 10, "has no meaning"),
        ("nodes > 64Gi", 9, "is not a number"),
        ("memory > 64Gb", 10, "is not a quantity: write it like 64Gi"),
        ("version < abc", 11, "there is no field"),
        ('version < "abc"', 11, "is not a version: write it like 1.30"),
        ("age < 5", 7, "is not a duration"),
        ("name == 5", 9, 'write "5" in quotes'),
        ("name == true", 9, "cannot be compared"),
        ("nodes == memory", 7, "a number cannot be compared with a quantity"),
        ("1 < 2", 3, "needs a field"),
        ("a < b < c", 7, "do not chain"),
        ("1 < nodes < 3", 11, "do not chain"),
        ("nodes", 1, "not a condition"),
        ("5", 1, "compare a field with it"),
        ('["a"]', 1, "write FIELD in [...]"),
        ('labels == "a"', 1, 'write labels["x"]'),
        ("requester.groups == 'a'", 1, '"x" in requester.groups'),
        ('requester.groups["a"] == "b"', 18, "has no"),
        ('name.first == "b"', 6, 'has no "first"'),
        ("name in labels.tier", 9, "needs a list or a map after it"),
        ("nodes in labels", 7, "a number cannot be in a map of text"),
        ('name.startswith("a")', 6, "did you mean startsWith?"),
        ("name.matches(5)", 14, "needs a text in quotes"),
        ('nodes.matches("5")', 7, "matches is for text"),
        ("has(name) == true", 11, "compares with nothing"),
        ("has(5)", 5, "has() asks for a field"),
        ("size(name) == 1", 1, 'there is no function "size"'),
        ('name == "a', 9, "has no end"),
        ("name == 'a\\q'", 11, "means nothing in a text"),
        ('name in ["a", ', 14, "expected a field or a value"),
        ('name in ["a" "b"]', 14, 'expected ","'),
        ("(accepted", 10, 'expected ")"'),
        ("accepted)", 9, "expected &&, || or the end"),
        ("accepted accepted", 10, "expected &&, || or the end"),
        ("name == $x", 9, "a text needs quotes"),
        ("labels[tier] == 'a'", 8, "a text in quotes"),
        ("labels. == 'a'", 9, "expected a name"),
        ("!" * (DEEPEST + 1) + "accepted", DEEPEST + 1, "within each other"),
        ("(" * 4000, DEEPEST + 1, "within each other"),
        ("accepted && " * 300 + "accepted", 3001, "more than 500 parts"),
        ("x" * (LONGEST + 1), LONGEST + 1, "at most"),
        ("é == 1", 1, "means nothing"),
    ],
)
def test_a_mistake_is_told_with_its_column_and_what_would_be_right(text: str, column: int, said: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        of(text)
    assert refused.value.column == column, refused.value.message
    assert refused.value.message.startswith(f"column {column}: ")
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("", "", True),
        ("*", "", True),
        ("a*", "a", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("*ab*ab", "abab", True),
        ("*ab*ab", "ab", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("?*?", "a", False),
        ("a.c", "abc", False),
        ("[ab]", "a", False),
        ("edge-*", "my-edge-1", False),
        ("Edge-*", "edge-1", False),
        ("a\\\\*", "a*", True),
        ("a\\\\*", "ab", False),
        ("*-\\\\?", "x-?", True),
    ],
)
def test_a_pattern_is_for_the_whole_text(pattern: str, text: str, fits: bool) -> None:  # noqa: FBT001 - a table's column
    assert of(f'name.matches("{pattern}")').evaluate({"name": text}) is fits


def test_no_pattern_takes_long() -> None:
    hard = of('name.matches("' + "*a" * 120 + '*b")')
    before = time.process_time()
    assert not hard.holds({"name": "a" * 20_000})
    assert time.process_time() - before < 0.5


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("1.9", "1.10"),
        ("v1.29.9", "v1.30"),
        ("1.30.0-alpha.2", "1.30.0-beta.1"),
        ("1.30.0-rc.2", "1.30.0-rc.10"),
        ("1.30.0-rc.9", "1.30.0"),
        ("1.30", "1.30.1-rc.1"),
    ],
)
def test_versions_follow_each_other_as_their_parts_do(earlier: str, later: str) -> None:
    assert parse_version(earlier) < parse_version(later)


@pytest.mark.parametrize("text", ["1.30.2", "v1.30.2", "1.30.2+k3s1", "v1.30.2-gke.1587003", "v1.30.2-eks-1552ad0"])
def test_a_distributors_suffix_is_no_early_version(text: str) -> None:
    assert parse_version(text) == parse_version("1.30.2")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64Gi", 64 * 2**30),
        ("500m", Fraction(1, 2)),
        ("1e3", 1000),
        ("1.5k", 1500),
        ("-2", -2),
        (".5", Fraction(1, 2)),
        ("1E", 10**18),
    ],
)
def test_quantities_are_kubernetes_own(text: str, value: Fraction) -> None:
    assert parse_quantity(text) == value
