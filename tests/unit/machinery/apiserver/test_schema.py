"""Structural schemas: unknown fields, defaults, broken rules."""

from typing import Any

import pytest

from machinery.apiserver.schema import defaulted, pruned, violations

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"},
                "size": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 9, "default": 3},
                "ratio": {"type": "number"},
                "mode": {"type": "string", "enum": ["a", "b"]},
                "when": {"type": "string", "format": "date-time", "nullable": True},
                "exact": {"type": "string", "format": "micro-time"},
                "data": {"type": "object", "additionalProperties": {"type": "string", "format": "byte"}},
                "either": {"x-kubernetes-int-or-string": True},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "parts": {
                    "type": "array",
                    "maxItems": 2,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["id"],
                    "items": {
                        "type": "object",
                        "properties": {"id": {"type": "string"}, "n": {"type": "integer", "default": 0}},
                    },
                },
            },
        }
    },
}


def document(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": {"name": "ab", **spec}}


def test_unknown_fields_go_and_are_told() -> None:
    given = document(nope=1, open={"any": {"thing": 1}}, parts=[{"id": "a", "odd": 1}], either={"a": 1})
    given["metadata"]["nome"] = "x"
    given["extra"] = {}

    kept, unknown = pruned(SCHEMA, given)

    assert unknown == ["extra", "metadata.nome", "spec.nope", "spec.parts[0].odd"]
    assert kept["spec"]["open"] == {"any": {"thing": 1}}
    assert kept["spec"]["parts"] == [{"id": "a"}]
    assert kept["metadata"] == {"name": "x"}


def test_pruning_leaves_the_given_document_alone() -> None:
    given = document(nope=1)

    pruned(SCHEMA, given)

    assert given["spec"]["nope"] == 1


def test_defaults_fill_what_is_absent_and_copy_only_then() -> None:
    complete = document(size=5, parts=[{"id": "a", "n": 1}])

    assert defaulted(SCHEMA, document(parts=[{"id": "a"}]))["spec"] == {"name": "ab", "size": 3, "parts": [{"id": "a", "n": 0}]}
    assert defaulted(SCHEMA, complete) is complete


@pytest.mark.parametrize(
    ("spec", "reason", "field"),
    [
        ({"name": 1}, "FieldValueTypeInvalid", "spec.name"),
        ({"name": None}, "FieldValueTypeInvalid", "spec.name"),
        ({"name": "a"}, "FieldValueInvalid", "spec.name"),
        ({"name": "abcde"}, "FieldValueTooLong", "spec.name"),
        ({"name": "AB"}, "FieldValueInvalid", "spec.name"),
        ({"size": 0}, "FieldValueInvalid", "spec.size"),
        ({"size": 10}, "FieldValueInvalid", "spec.size"),
        ({"size": True}, "FieldValueTypeInvalid", "spec.size"),
        ({"size": 1.5}, "FieldValueTypeInvalid", "spec.size"),
        ({"ratio": "1"}, "FieldValueTypeInvalid", "spec.ratio"),
        ({"mode": "c"}, "FieldValueNotSupported", "spec.mode"),
        ({"when": "yesterday"}, "FieldValueTypeInvalid", "spec.when"),
        ({"when": "2026-11-21"}, "FieldValueTypeInvalid", "spec.when"),
        ({"exact": "2026-11-21T00:00:00"}, "FieldValueTypeInvalid", "spec.exact"),
        ({"data": {"k": "%%%"}}, "FieldValueTypeInvalid", "spec.data.k"),
        ({"either": []}, "FieldValueTypeInvalid", "spec.either"),
        ({"parts": [{"id": "a"}, {"id": "a"}]}, "FieldValueDuplicate", "spec.parts[1]"),
        ({"parts": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}, "FieldValueTooMany", "spec.parts"),
    ],
)
def test_a_broken_rule_is_told_once_with_its_field(spec: dict[str, Any], reason: str, field: str) -> None:
    assert [(cause.reason, cause.field) for cause in violations(SCHEMA, document(**spec))] == [(reason, field)]


def test_a_missing_field_is_told() -> None:
    assert [cause.field for cause in violations(SCHEMA, {"spec": {}})] == ["spec.name"]


@pytest.mark.parametrize(
    "spec",
    [
        {"when": None},
        {"when": "2026-11-21T00:00:00+01:00"},
        {"exact": "2026-11-21T00:00:00.000001Z"},
        {"either": 1},
        {"either": "1"},
        {"ratio": 1},
        {"data": {"k": "YQ=="}},
    ],
)
def test_what_is_allowed_passes(spec: dict[str, Any]) -> None:
    assert violations(SCHEMA, document(**spec)) == []
