"""Label and field selectors in Kubernetes' grammar, and API group suffixes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machinery.errors import BadRequestError
from machinery.product import GROUP_SUFFIX, suffixed
from machinery.selectors import MOST_VALUES, parse_field_selector, parse_label_selector, selector_of
from tests.trials import examples

LABELS = {"env": "prod", "tier": "gold", "empty": ""}


def test_label_selector_matches_as_kubernetes_does() -> None:
    matching = ["", "env=prod", "env==prod", "absent!=prod", "env", "!absent", "env in (dev, prod)", "absent notin (dev)"]
    matching += ["empty=", " env = prod , tier in (gold) "]
    others = ["env=dev", "env!=prod", "!env", "env notin (dev,prod)", "env=,tier=gold", "env=prod,tier=iron", "in in (in)"]
    assert [text for text in matching if not parse_label_selector(text).matches(LABELS)] == []
    assert [text for text in others if parse_label_selector(text).matches(LABELS)] == []


def test_malformed_selector_is_refused_with_what_was_found(subtests: pytest.Subtests) -> None:
    for text, said in (
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
    ):
        with subtests.test(text=text, said=said), pytest.raises(BadRequestError, match=said):
            parse_label_selector(text)

    with pytest.raises(BadRequestError, match="can't understand 'nonsense'"):
        parse_field_selector("nonsense")

    values = ",".join(f"v{number}" for number in range(MOST_VALUES))
    assert len(parse_label_selector(f"a in ({values})").requirements[0].values) == MOST_VALUES
    with pytest.raises(BadRequestError, match="400 values at most, got 401"):
        parse_label_selector(f"a notin ({values},more)")
    with pytest.raises(BadRequestError, match="400 values at most"):
        selector_of({"matchExpressions": [{"key": "a", "operator": "In", "values": [*values.split(","), "more"]}]})


@examples(100, 20_000)
@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parse in (parse_label_selector, parse_field_selector):
        try:
            parse(text)
        except BadRequestError:
            continue


def test_field_selector_matches_as_kubernetes_does() -> None:
    fields = {"metadata.name": "a", "status.phase": "Active", "metadata.note": "x,y=z"}
    matching = ["", "metadata.name=a", "metadata.name==a", "metadata.name=a,status.phase=Active", "status.reason="]
    matching += [r"metadata.note=x\,y\=z"]
    assert [text for text in matching if not parse_field_selector(text).matches(fields)] == []
    assert not parse_field_selector("metadata.name!=a").matches(fields)


def test_only_groups_of_ours_change() -> None:
    cases = (
        (f"cluster.{GROUP_SUFFIX}/v1", "cluster.example.org/v1"),
        (f"addon.{GROUP_SUFFIX}", "addon.example.org"),
        (f"work.{GROUP_SUFFIX}/v1", f"work.{GROUP_SUFFIX}/v1"),
        ("cluster.example.org/v1", "cluster.example.org/v1"),
        ("coordination.k8s.io/v1", "coordination.k8s.io/v1"),
        ("v1", "v1"),
        ("", ""),
    )
    assert [(sent, expected) for sent, expected in cases if suffixed(sent, "example.org") != expected] == []
