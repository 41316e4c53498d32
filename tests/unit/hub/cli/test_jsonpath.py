"""JSONPath templates: what they find, how it is printed, and what is no template."""

from typing import Any

import pytest

from hub.cli.failures import CommandError
from hub.cli.jsonpath import as_json, parse_path, parse_template, rendered
from hub.cli.jsonpath.evaluation import find
from tests.fakes.jsonpaths import DOCUMENT, KINDER, SAME, WRONG


@pytest.mark.parametrize(("template", "text"), [*SAME.items(), *KINDER.items()])
def test_a_template_finds(template: str, text: str) -> None:
    assert rendered(parse_template(template), DOCUMENT) == text


@pytest.mark.parametrize(("template", "word"), WRONG.items())
def test_what_is_no_template_is_refused_with_the_reason(template: str, word: str) -> None:
    with pytest.raises(CommandError) as refused:
        rendered(parse_template(template), DOCUMENT)
    assert word in refused.value.sentence
    assert refused.value.code == (1 if refused.value.sentence.startswith("jsonpath:") else 2)


def test_each_result_as_json() -> None:
    assert as_json(parse_template("{.spec.list[*].name}"), DOCUMENT) == '[\n    "one",\n    "two"\n]\n'


@pytest.mark.parametrize("path", ["metadata.name", ".metadata.name", "{metadata.name}", "{.metadata.name}"])
def test_a_path_is_read_with_and_without_braces_and_dot(path: str) -> None:
    assert find(parse_path(path), DOCUMENT) == ["thing"]


@pytest.mark.parametrize("path", ["{.a}{.b}", "", "{}"])
def test_more_than_one_expression_is_no_path(path: str) -> None:
    with pytest.raises(CommandError, match="is no path"):
        parse_path(path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (2.5, "2.5"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1e-5, "1e-05"),
        (0.0001, "0.0001"),
        (-0.5, "-0.5"),
    ],
)
def test_broken_numbers_are_written_as_go_writes_them(value: float, text: str) -> None:
    assert rendered(parse_template("{.a}"), {"a": value}) == text


def test_a_map_is_json_with_sorted_keys_and_escapes() -> None:
    document: dict[str, Any] = {"b": 1.0, "a": "<&>"}
    assert rendered(parse_template("{@}"), document) == '{"a":"\\u003c\\u0026\\u003e","b":1}'
