"""Expressions: what is read, what it means, what is refused and where, and how values sort."""

from datetime import timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from machinery.expression import Expression, ExpressionError, Fields, ListOf, MapOf, Type, parse, parse_quantity, parse_version
from machinery.expression.parsing import DEEPEST
from machinery.expression.syntax import LONGEST
from machinery.expression.types import format_quantity, number_of, sort_key
from tests.checks import CASE_FILES, check_refusals, present, refusal, within_steps

FIELDS = Fields(
    {
        "name": Type.TEXT,
        "version": Type.VERSION,
        "version.minor": Type.VERSION,
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
TABLE = yaml.safe_load((CASE_FILES / "expressions.yaml").read_text())


def of(text: str) -> Expression:
    return parse(text, FIELDS)


def test_condition_is_evaluated_with_unknown_for_missing_fields() -> None:
    assert [text for text in TABLE["holds"] if of(text).evaluate(EDGE) is not True] == []

    for text in TABLE["unknown"]:
        assert of(text).evaluate(EDGE) is None, text
        assert not of(text).holds(EDGE), text
        assert not of(f"!({text})").holds(EDGE), text

    for text, known in (('labels.owner == "ann" && nodes == 4', False), ('labels.owner == "ann" || nodes == 3', True)):
        assert of(text).evaluate(EDGE) is known, text
    assert of("has(labels.owner)").evaluate(EDGE) is False


def test_document_of_wrong_types_has_missing_fields_and_fails_nothing() -> None:
    rows: list[Any] = [None, "", "abc", "1.2.3.4", 5, [], {}, True, float("nan"), "9" * 5000, "1e999999999", 10**400]
    rows += [{"a": {}}, [[]]]
    for raw in rows:
        every = "version < 1 || memory > 1 || nodes > 1 || age > 1s || accepted || labels.a == 'x' || 'x' in requester.groups"
        whole = of(f"({every}) && 'x' in labels && has(requester.groups) && name.matches('*a*b')")
        assert whole.evaluate(dict.fromkeys(FIELDS.types, raw)) in (True, False, None), raw


def test_mistake_is_reported_with_its_column_and_a_suggestion() -> None:
    for text, column, part in (
        *TABLE["mistakes"],
        ("name =~ '" + "é" * 129 + "'", 9, "at most 256 bytes, not 258"),
        (" && ".join(["name =~ 'a'"] * 9), 126, "at most 8 regular expressions"),
        ("!" * (DEEPEST + 1) + "accepted", DEEPEST + 1, "within each other"),
        ("(" * 4000, DEEPEST + 1, "within each other"),
        ("accepted && " * 300 + "accepted", 3001, "more than 500 parts"),
        ("x" * (LONGEST + 1), LONGEST + 1, "at most"),
    ):
        refused = present(refusal(ExpressionError, of, text))
        why = refused.message
        assert (refused.column, why.startswith(f"column {column}: "), part in why) == (column, True, True), (text, why)


def test_regular_expression_matches_the_whole_text_in_linear_time() -> None:
    names = {"name": "edge-1-ab"}
    truths = {"edge-[0-9]+-ab": True, "edge-1": False, "-ab": False, "": False, "(?i)EDGE.*": True, "edge-1-a(?P<x>b|c)": True}
    truths |= {"Edge-1-ab": False, "[[:alnum:]-]{9}": True}
    assert {text: of(f"name =~ '{text}'").evaluate(names) for text in truths} == truths
    assert [text for text in truths if of(f"name !~ '{text}'").evaluate(names) is truths[text]] == []
    assert of("labels.owner =~ '.*'").evaluate(EDGE) is of("labels.owner !~ '.*'").evaluate(EDGE) is None
    assert not of("name =~ '(x+x+)+y'").holds({"name": "x" * 20_000})


def test_pattern_matches_the_whole_text_in_linear_time() -> None:
    def fits(pattern: str, text: str) -> bool | None:
        return of(f'name.matches("{pattern}")').evaluate({"name": text})

    fitting = [("", ""), ("*", ""), ("a*", "a"), ("a*a", "aa"), ("*ab*ab", "abab"), ("a?c", "abc"), ("a\\\\*", "a*")]
    others = [("a*a", "a"), ("*ab*ab", "ab"), ("a?c", "ac"), ("?*?", "a"), ("a.c", "abc"), ("[ab]", "a"), ("a\\\\*", "ab")]
    assert [pair for pair in (*fitting, ("*-\\\\?", "x-?")) if fits(*pair) is not True] == []
    assert [pair for pair in (*others, ("edge-*", "my-edge-1"), ("Edge-*", "edge-1")) if fits(*pair) is not False] == []

    hard = of('name.matches("' + "*a" * 120 + '*b")')
    assert not within_steps(10_000, lambda: hard.holds({"name": "a" * 20_000}))


parts = st.sampled_from(["alpha", "alpha.1", "alpha.2", "alpha.10", "alpha.beta", "beta", "rc", "rc.1", "rc-1", "rc.0.x"])
versions = st.builds(
    lambda major, minor, patch, early: parse_version(f"v{major}.{minor}.{patch}{'-' + early if early else ''}"),
    st.integers(0, 120),
    st.integers(0, 12),
    st.integers(0, 10**12),
    st.one_of(st.none(), parts),
)
quantities = st.builds(
    lambda sign, number, unit: parse_quantity(f"{sign}{number}{unit}"),
    st.sampled_from(["", "-"]),
    st.one_of(st.integers(0, 5000).map(str), st.sampled_from(["0.5", "1.25", "1.255", "999.999", "0.001", "1000000000"])),
    st.sampled_from(["", "n", "u", "m", "k", "Ki", "Mi", "Gi", "G", "E", "Ei", "e3", "e-9", "e60"]),
)
durations = st.timedeltas(timedelta(days=-1000), timedelta(days=10000))


@pytest.mark.parametrize("values", [versions, quantities, durations], ids=["versions", "quantities", "durations"])
def test_texts_sort_as_the_values_do(values: st.SearchStrategy[Any]) -> None:
    @given(values, values)
    def compared(first: Any, second: Any) -> None:
        one, other = sort_key(first), sort_key(second)
        assert (one < other, one == other) == (first < second, first == second)
        assert one.isascii(), "bytes and characters sort alike"
        if isinstance(first, Fraction):
            assert number_of(one) == first

    compared()


def test_versions_and_quantities_are_ordered_as_kubernetes_orders_them() -> None:
    ordered = ["1.9", "1.10", "v1.29.9", "1.30.0-alpha.2", "1.30.0-beta.1", "1.30.0-rc.2", "1.30.0-rc.10", "1.30.0"]
    ordered += ["1.30.1-rc.1"]
    assert [pair for pair in pairwise(ordered) if not parse_version(pair[0]) < parse_version(pair[1])] == []

    cases = ("1.30.2", "v1.30.2", "1.30.2+k3s1", "v1.30.2-gke.1587003", "v1.30.2-eks-1552ad0")
    assert [text for text in cases if parse_version(text) != parse_version("1.30.2")] == []

    shown = ["1Gi", "1536Ki", "1025", "1500m", "0", "-1Mi", "1u", "1n"]
    assert [format_quantity(parse_quantity(text), binary=True) for text in shown] == shown
    assert [format_quantity(parse_quantity(text)) for text in ("2Ki", "0.1n")] == ["2048", "1n"]

    texts = ["64Gi", "500m", "1e3", "1.5k", "-2", ".5", "1E"]
    values = [64 * 2**30, Fraction(1, 2), 1000, 1500, -2, Fraction(1, 2), 10**18]
    assert [parse_quantity(text) for text in texts] == values

    numbers = ["-10", "-9", "-1.55", "-1.5", "-0.5", "0", "0.009", "0.01", "0.5", "1", "1.5", "9", "10", "64Gi", "65Gi", "1Ei"]
    assert all(low < high for low, high in pairwise([sort_key(parse_quantity(number)) for number in numbers]))
    names = ["1.9", "1.29.3", "1.30.0-alpha.9", "1.30.0-alpha.10", "1.30.0-alpha.beta", "1.30.0-rc", "1.30", "1.30.1", "1.100"]
    assert all(low < high for low, high in pairwise(sort_key(parse_version(name)) for name in names))
    assert sort_key(parse_version("1.30")) == sort_key(parse_version("v1.30.0-gke.7"))
    check_refusals(ValueError, sort_key, [(without_order, "has no") for without_order in ("text", True, Fraction(1, 3))])


words = st.sampled_from(["a", "ab", "edge-1", "edge-22", "A", "a*b", "50%", "a_b"])
literals = words.map(lambda word: f'"{word}"')
patterns = st.sampled_from(["*", "a*", "*b", "edge-?", "edge-*2", "a\\\\*b", "50%", "a_b", "?", ""])
atoms = st.one_of(
    st.builds("name {} {}".format, st.sampled_from(["==", "!="]), literals),
    st.builds("labels.tier {} {}".format, st.sampled_from(["==", "!="]), literals),
    st.builds("nodes {} {}".format, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), st.integers(-2, 5)),
    st.builds("name in [{}, {}]".format, literals, literals),
    st.builds('labels["tier"].{}({})'.format, st.sampled_from(["startsWith", "endsWith", "contains"]), literals),
    st.builds('name.matches("{}")'.format, patterns),
    st.builds('name {} "{}"'.format, st.sampled_from(["=~", "!~"]), st.sampled_from(["a.*", "edge-[0-9]", ""])),
    st.sampled_from(["accepted", "has(name)", "has(labels.tier)", "true", "false", '"tier" in labels']),
)
conditions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner), st.builds("({} || {})".format, inner, inner), inner.map("!({})".format)
    ),
    max_leaves=8,
)
rows = st.fixed_dictionaries(
    {},
    optional={
        "name": words,
        "nodes": st.integers(-2, 5),
        "accepted": st.booleans(),
        "labels": st.one_of(st.just({}), words.map(lambda word: {"tier": word})),
    },
)


@given(st.text(max_size=60) | st.text(alphabet="ab nodesname.()[]\"'!&|<>=~1.,-in\\", max_size=60), rows)
def test_any_text_is_refused_with_a_column_inside_it_or_evaluates(text: str, row: dict[str, Any]) -> None:
    try:
        assert parse(text, FIELDS).evaluate(row) in (True, False, None)
    except ExpressionError as error:
        assert 1 <= error.column <= len(text) + 1  # noqa: PT017 - refused or evaluated


@given(conditions, rows)
def test_what_holds_is_never_denied_too(text: str, row: dict[str, Any]) -> None:
    assert not (parse(text, FIELDS).holds(row) and parse(f"!({text})", FIELDS).holds(row))
