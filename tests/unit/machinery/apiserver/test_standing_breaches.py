"""What an object breaks already, and what a write adds to it."""

from collections.abc import Mapping
from typing import Any

import pytest

from machinery.apiserver.breaches import added
from machinery.apiserver.kinds.coordination import LEASE
from machinery.apiserver.resource import Resource, Subresource
from machinery.apiserver.schema import violations
from machinery.apiserver.storage import Actor, Document
from machinery.apiserver.writes import Write
from machinery.clock import ManualClock
from machinery.errors import BadRequestError, InvalidError

NOW = ManualClock().now()
ENVELOPE = {"apiVersion": "example.com/v1", "kind": "Thing"}
METADATA = {"name": "a", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
SHORT = {"type": "string", "maxLength": 3}
SPEC = {
    "type": "object",
    "properties": {
        "name": SHORT,
        "number": {"type": "integer"},
        "names": {"type": "array", "maxItems": 1, "items": SHORT},
        "map": {"type": "object", "additionalProperties": SHORT},
        "needed": {"type": "object", "required": ["name"], "properties": {"name": SHORT}},
    },
}
STATUS = {"type": "object", "properties": {"word": {"type": "string"}}}
SCHEMA = {"type": "object", "properties": {"spec": SPEC, "status": STATUS}}


def counted(new: Document, old: Document, _actor: Actor, _now: object) -> Document:
    return {**old, "status": {"word": str(new["spec"]["number"] + 1)}}


THING = Resource(
    group="example.com",
    version="v1",
    name="things",
    kind="Thing",
    schema=SCHEMA,
    subresources=(Subresource("status", counted),),
)


def thing(**spec: Any) -> dict[str, Any]:
    return {**ENVELOPE, "metadata": METADATA, "spec": spec}


def fields(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """Of what a write from one to the other is told."""
    causes = added(violations(SCHEMA, new), new, lambda: old, lambda each: violations(SCHEMA, each))
    return [cause.field for cause in causes]


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "long!"},
        {"names": ["a", "long!"]},
        {"map": {"a.b[0].c": "long!", "a": "b", "": "long!"}},
        {"needed": {}},
        {"map": {"." * 5_000: "long!"}},
    ],
)
def test_what_stands_is_told_to_nobody(spec: Mapping[str, Any]) -> None:
    assert violations(SCHEMA, thing(**spec))
    assert fields(thing(**spec, number=2), thing(**spec, number=1)) == []


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ({"name": "long!"}, {"name": "longer!"}, "spec.name"),
        ({"names": ["long!"]}, {"names": ["longer!"]}, "spec.names[0]"),
        ({"map": {"a.b[0].c": "long!"}}, {"map": {"a.b[0].c": "longer!"}}, "spec.map.a.b[0].c"),
        ({"needed": {"name": "long!"}}, {"needed": {"name": "longer!"}}, "spec.needed.name"),
    ],
)
def test_a_worse_value_does_not_pass_for_the_one_that_stood_there(
    before: Mapping[str, Any], after: Mapping[str, Any], field: str
) -> None:
    assert fields(thing(**after), thing(**before)) == [field]


def test_nothing_is_asked_of_an_object_whose_types_are_wrong_as_they_were() -> None:
    old = {**thing(number="one"), "status": {"word": "1"}}
    write = Write(THING, Actor("admin"), NOW, part=THING.subresources[0])
    with pytest.raises(InvalidError, match=r"spec\.number in body must be of type integer"):
        write.changed({**old, "status": {"word": "2"}}, old)
    assert Write(THING, Actor("admin"), NOW).changed(thing(number=1), old), "who mends it is refused nothing"


def test_a_builtin_object_whose_types_are_wrong_as_they_were_cannot_be_read() -> None:
    old = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": METADATA}
    old = {**old, "spec": {"leaseDurationSeconds": "60"}}
    with pytest.raises(BadRequestError, match="cannot be handled as a Lease"):
        Write(LEASE, Actor("admin"), NOW).changed({**old, "metadata": {**METADATA, "labels": {"a": "b"}}}, old)
