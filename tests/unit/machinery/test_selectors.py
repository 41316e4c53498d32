"""Label and field selectors in Kubernetes' grammar."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machinery.errors import BadRequestError
from machinery.selectors import MOST_VALUES, parse_field_selector, parse_label_selector, selector_of
from tests.trials import examples

LABELS = {"env": "prod", "tier": "gold", "empty": ""}


@dataclass(frozen=True, slots=True)
class Case:
    text: str
    matches: bool


@pytest.mark.parametrize(
    "case",
    [
        Case("", matches=True),
        Case("env=prod", matches=True),
        Case("env==prod", matches=True),
        Case("env=dev", matches=False),
        Case("env!=prod", matches=False),
        Case("absent!=prod", matches=True),
        Case("env", matches=True),
        Case("!env", matches=False),
        Case("!absent", matches=True),
        Case("env in (dev, prod)", matches=True),
        Case("env notin (dev,prod)", matches=False),
        Case("absent notin (dev)", matches=True),
        Case("empty=", matches=True),
        Case("env=,tier=gold", matches=False),
        Case(" env = prod , tier in (gold) ", matches=True),
        Case("env=prod,tier=iron", matches=False),
        Case("in in (in)", matches=False),
    ],
    ids=lambda case: case.text,
)
def test_a_label_selector_matches_as_kubernetes_does(case: Case) -> None:
    assert parse_label_selector(case.text).matches(LABELS) is case.matches


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a===b", "found '=', expected: identifier"),
        ("env=bad value !", "found 'value', expected: ',' or 'end of string'"),
        ("=b", "expected: !, identifier"),
        ("a=b,", "expected: identifier after ','"),
        ("a in b", r"found no '\('"),
        ("a in (b", "expected: ',' or '\\)'"),
        ("-a=b", "not a qualified name"),
        ("a=-b", "not a label value"),
        (f"a={'x' * 64}", "not a label value"),
        ("a>1", "not supported"),
        ("!", "expected: identifier"),
    ],
)
def test_a_wrong_label_selector_says_what_was_found(text: str, said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        parse_label_selector(text)


@examples(100, 20_000)
@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parse in (parse_label_selector, parse_field_selector):
        try:
            parse(text)
        except BadRequestError:
            continue


@pytest.mark.parametrize(
    "case",
    [
        Case("", matches=True),
        Case("metadata.name=a", matches=True),
        Case("metadata.name==a", matches=True),
        Case("metadata.name!=a", matches=False),
        Case("metadata.name=a,status.phase=Active", matches=True),
        Case("status.reason=", matches=True),
        Case(r"metadata.note=x\,y\=z", matches=True),
    ],
    ids=lambda case: case.text,
)
def test_a_field_selector_matches_as_kubernetes_does(case: Case) -> None:
    fields = {"metadata.name": "a", "status.phase": "Active", "metadata.note": "x,y=z"}

    assert parse_field_selector(case.text).matches(fields) is case.matches


def test_a_field_selector_without_operator_is_refused() -> None:
    with pytest.raises(BadRequestError, match="can't understand 'nonsense'"):
        parse_field_selector("nonsense")


def test_a_set_has_a_bounded_number_of_values() -> None:
    values = ",".join(f"v{number}" for number in range(MOST_VALUES))
    assert len(parse_label_selector(f"a in ({values})").requirements[0].values) == MOST_VALUES
    with pytest.raises(BadRequestError, match="400 values at most, got 401"):
        parse_label_selector(f"a notin ({values},more)")
    with pytest.raises(BadRequestError, match="400 values at most"):
        selector_of({"matchExpressions": [{"key": "a", "operator": "In", "values": [*values.split(","), "more"]}]})
