"""Which fields two documents differ in, and which fields a document has."""

from dataclasses import dataclass
from typing import Any

import pytest

from machinery.managedfields.comparing import compare
from machinery.managedfields.fieldset import FieldSet, decoded, encoded
from machinery.managedfields.merging import merge
from machinery.managedfields.selecting import fields_of, reconciled, with_named, without
from machinery.managedfields.structure import DEEPEST_OPEN, structure
from tests.fakes.managedfields import SCHEMA, STRUCTURE

READY = 'k:{"name":"a"}'


@dataclass(frozen=True, slots=True)
class Case:
    why: str
    old: dict[str, Any]
    new: dict[str, Any]
    removed: dict[str, Any]
    modified: dict[str, Any]
    added: dict[str, Any]


CASES = (
    Case("equal", {"number": 1}, {"number": 1}, {}, {}, {}),
    Case("a scalar", {"number": 1, "text": "a"}, {"number": 2}, {"f:text": {}}, {"f:number": {}}, {}),
    Case("a map that comes is there itself", {}, {"inner": {"left": "a"}}, {}, {}, {"f:inner": {".": {}, "f:left": {}}}),
    Case("a map that goes", {"inner": {"left": "a"}}, {}, {"f:inner": {".": {}, "f:left": {}}}, {}, {}),
    Case("an empty map that comes", {}, {"inner": {}}, {}, {}, {"f:inner": {}}),
    Case(
        "one of several names",
        {"names": {"a": "1", "b": "1"}},
        {"names": {"a": "2", "c": "1"}},
        {"f:names": {"f:b": {}}},
        {"f:names": {"f:a": {}}},
        {"f:names": {"f:c": {}}},
    ),
    Case("an atomic map", {"selector": {"a": "1"}}, {"selector": {"a": "1", "b": "2"}}, {}, {"f:selector": {}}, {}),
    Case("an atomic list", {"whole": ["a"]}, {"whole": ["a", "b"]}, {}, {"f:whole": {}}, {}),
    Case("a set", {"set": ["a", "b"]}, {"set": ["b", "c"]}, {"f:set": {'v:"a"': {}}}, {}, {"f:set": {'v:"c"': {}}}),
    Case("the order of a set is no field", {"set": ["a", "b"]}, {"set": ["b", "a"]}, {}, {}, {}),
    Case(
        "an entry of a list",
        {"list": [{"name": "a", "value": 1}, {"name": "b"}]},
        {"list": [{"name": "c"}, {"name": "a", "value": 2}]},
        {"f:list": {'k:{"name":"b"}': {".": {}, "f:name": {}}}},
        {"f:list": {READY: {"f:value": {}}}},
        {"f:list": {'k:{"name":"c"}': {".": {}, "f:name": {}}}},
    ),
    Case(
        "a key that is left out has its default",
        {"ports": [{"name": "a"}]},
        {"ports": [{"name": "a", "protocol": "TCP", "value": 1}]},
        {},
        {},
        {"f:ports": {'k:{"name":"a","protocol":"TCP"}': {"f:protocol": {}, "f:value": {}}}},
    ),
    Case(
        "twins are one field",
        {"list": [{"name": "a", "value": 1}, {"name": "a", "value": 2}]},
        {"list": [{"name": "a", "value": 1}, {"name": "a", "value": 3}]},
        {},
        {"f:list": {READY: {}}},
        {},
    ),
    Case(
        "twins that come",
        {"list": [{"name": "a", "value": 1}]},
        {"list": [{"name": "a", "value": 1}, {"name": "a", "value": 2}]},
        {"f:list": {READY: {".": {}, "f:name": {}, "f:value": {}}}},
        {},
        {"f:list": {READY: {}}},
    ),
    Case(
        "twins that go",
        {"list": [{"name": "a", "value": 1}, {"name": "a", "value": 2}]},
        {"list": [{"name": "a", "value": 1}]},
        {"f:list": {READY: {}}},
        {},
        {"f:list": {READY: {".": {}, "f:name": {}, "f:value": {}}}},
    ),
    Case("null is there", {"text": None}, {"text": "a"}, {}, {"f:text": {}}, {}),
    Case(
        "what nobody declared is divided by its look",
        {"open": {"a": {"b": 1}, "c": [1]}},
        {"open": {"a": {"b": 2}, "c": [1, 2]}},
        {},
        {"f:open": {"f:a": {"f:b": {}}, "f:c": {}}},
        {},
    ),
    Case(
        "a map that becomes a scalar",
        {"open": {"a": {"b": 1}}},
        {"open": {"a": 1}},
        {"f:open": {"f:a": {"f:b": {}}}},
        {"f:open": {"f:a": {}}},
        {},
    ),
    Case("a list without its keys is one field", {"list": [{"value": 1}]}, {"list": [{"value": 2}]}, {}, {"f:list": {}}, {}),
)


@pytest.mark.parametrize("case", CASES, ids=[case.why for case in CASES])
def test_documents_are_compared_by_field(case: Case) -> None:
    comparison = compare(STRUCTURE, case.old, case.new)

    told = (encoded(comparison.removed), encoded(comparison.modified), encoded(comparison.added))
    assert told == (case.removed, case.modified, case.added)


@pytest.mark.parametrize(
    ("document", "fields"),
    [
        ({"number": 1, "inner": {"left": "a"}}, {"f:number": {}, "f:inner": {"f:left": {}}}),
        ({"inner": {}}, {"f:inner": {}}),
        ({"inner": None}, {"f:inner": {}}),
        ({"set": []}, {}),
        ({"names": {"a": "1"}}, {"f:names": {"f:a": {}}}),
        ({"selector": {"a": "1"}, "whole": []}, {"f:selector": {}, "f:whole": {}}),
        ({"set": ["a"]}, {"f:set": {'v:"a"': {}}}),
        ({"list": [{"name": "a", "value": 1}]}, {"f:list": {READY: {".": {}, "f:name": {}, "f:value": {}}}}),
        ({"list": [{"name": "a"}, {"name": "a"}]}, {"f:list": {READY: {}}}),
        ({"open": {"a": {"b": 1}}}, {"f:open": {"f:a": {".": {}, "f:b": {}}}}),
    ],
)
def test_an_applied_document_has_fields_but_not_the_declared_maps_around_them(
    document: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert encoded(fields_of(STRUCTURE, document)) == fields


def test_a_document_without_fields_has_no_empty_rests() -> None:
    document = {
        "inner": {"left": "a", "right": "b"},
        "names": {"a": "1"},
        "set": ["a", "b"],
        "list": [{"name": "a", "value": 1, "tags": ["x"]}],
        "whole": ["a"],
    }
    gone = fields_of(STRUCTURE, {"inner": {"left": "a"}, "names": {"a": "1"}, "set": ["a"]})
    tags = fields_of(STRUCTURE, {"list": [{"name": "a", "tags": ["x"]}]}) - fields_of(STRUCTURE, {"list": [{"name": "a"}]})

    assert without(STRUCTURE, document, gone | tags) == {
        "inner": {"right": "b"},
        "set": ["b"],
        "list": [{"name": "a", "value": 1}],
        "whole": ["a"],
    }


def test_named_maps_go_with_their_content_and_free_names_do_not() -> None:
    fields = fields_of(STRUCTURE, {"inner": {"left": "a"}, "open": {"a": {"b": 1}}})

    named = with_named(STRUCTURE, fields - fields_of(STRUCTURE, {"open": {"a": {}}}))

    assert encoded(named) == {"f:inner": {".": {}, "f:left": {}}, "f:open": {".": {}, "f:a": {"f:b": {}}}}


def test_what_lies_too_deep_is_one_field() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"a": deep, "b": 1}

    comparison = compare(STRUCTURE, {}, {"open": deep})

    assert max(len(path) for path in comparison.added.paths()) == DEEPEST_OPEN + 1
    assert decoded(encoded(fields_of(STRUCTURE, {"open": deep}))) == fields_of(STRUCTURE, {"open": deep})
    assert merge(STRUCTURE, {"open": deep}, {"open": deep}) == {"open": deep}


def test_who_held_parts_of_what_is_a_whole_today_holds_the_whole() -> None:
    atomic = structure(
        {**SCHEMA, "properties": {**SCHEMA["properties"], "inner": {"type": "object", "x-kubernetes-map-type": "atomic"}}}
    )

    fields = reconciled(atomic, fields_of(STRUCTURE, {"inner": {"left": "a"}, "number": 1}))

    assert encoded(fields) == {"f:inner": {}, "f:number": {}}
    assert reconciled(STRUCTURE, FieldSet()) == FieldSet()
