"""Label and field selectors in Kubernetes' grammar, and API group suffixes."""

from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from machinery.errors import BadRequestError
from machinery.meta.differences import differences, readable
from machinery.meta.objects import Key, Query
from machinery.meta.selectors import MOST_TERMS, MOST_VALUES, parse_field_selector, parse_label_selector, selector_of
from machinery.product import GROUP_SUFFIX, suffixed
from tests.checks import CASE_FILES, check_refusal, check_refusals, check_results
from tests.trials import examples

TABLES = yaml.safe_load((CASE_FILES / "selectors.yaml").read_text())

LABELS = {"env": "prod", "tier": "gold", "empty": ""}


def test_label_selector_matches_as_kubernetes_does() -> None:
    matching = ["", "env=prod", "env==prod", "absent!=prod", "env", "!absent", "env in (dev, prod)", "absent notin (dev)"]
    matching += ["empty=", " env = prod , tier in (gold) "]
    others = ["env=dev", "env!=prod", "!env", "env notin (dev,prod)", "env=,tier=gold", "env=prod,tier=iron", "in in (in)"]
    assert [text for text in matching if not parse_label_selector(text).matches(LABELS)] == []
    assert [text for text in others if parse_label_selector(text).matches(LABELS)] == []


def test_malformed_selector_is_refused_with_what_was_found() -> None:
    check_refusals(BadRequestError, parse_label_selector, TABLES["malformed"])

    check_refusal(BadRequestError, parse_field_selector, "nonsense", match="can't understand 'nonsense'")

    for parse, term in (
        (lambda text: parse_label_selector(text).requirements, "a=b"),
        (parse_field_selector, "metadata.name!=b"),
    ):
        assert len(parse(",".join([term] * MOST_TERMS))) == MOST_TERMS
        check_refusal(BadRequestError, parse, ",".join([term] * 1_200), match="100 terms at most")
        check_refusal(BadRequestError, parse, "x" * 1_000_000, match="characters at most")
    with pytest.raises(BadRequestError, match="100 terms at most"):
        selector_of({"matchLabels": {f"k{number}": "v" for number in range(101)}})

    values = ",".join(f"v{number}" for number in range(MOST_VALUES))
    assert len(parse_label_selector(f"a in ({values})").requirements[0].values) == MOST_VALUES
    check_refusal(BadRequestError, parse_label_selector, f"a notin ({values},more)", match="400 values at most, got 401")
    with pytest.raises(BadRequestError, match="1000 values together at most, got 1200"):
        parse_label_selector(",".join([f"a in ({values})"] * 3))
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
    names = ["", "metadata.name=a", "metadata.name==a"]
    matching = [*names, "metadata.name=a,status.phase=Active", "status.reason=", r"metadata.note=x\,y\=z"]
    selected = [text for text in matching if Query(fields=parse_field_selector(text)).matches(Key("", "a"), {}, fields)]
    assert selected == matching
    assert not Query(fields=parse_field_selector("metadata.name!=a")).matches(Key("", "a"), {}, fields)


def test_only_groups_of_ours_change() -> None:
    ours = {f"cluster.{GROUP_SUFFIX}/v1": "cluster.example.org/v1", f"addon.{GROUP_SUFFIX}": "addon.example.org"}
    others = (f"work.{GROUP_SUFFIX}/v1", "cluster.example.org/v1", "coordination.k8s.io/v1", "v1", "")
    expected = ours | {other: other for other in others}
    assert {sent: suffixed(sent, "example.org") for sent in expected} == expected


def found(before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    return [(each.path, each.before, each.after) for each in differences(before, after)]


def test_differences_are_named_by_their_fields() -> None:
    check_results(lambda before, after: [list(each) for each in found(before, after)], TABLES["differences"])

    before = {"metadata": {"name": "a", "resourceVersion": "1", "generation": 1, "managedFields": [1]}}
    after = {"metadata": {"name": "a", "resourceVersion": "2", "generation": 2, "managedFields": [2], "labels": {"a": "b"}}}
    assert (found(before, after), readable(before)) == ([("metadata.labels", None, {"a": "b"})], {"metadata": {"name": "a"}})

    assert found(None, {"kind": "K", "spec": {"a": 1}}) == [("kind", None, "K"), ("spec", None, {"a": 1})]
    assert list(differences(None, None)) == []
