"""What a body may cost: no input that a door takes is worked on for much longer than it takes to read it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Any

import pytest

from machinery.apiserver.bodies import _load_json
from machinery.apiserver.limits import BODY_LIMIT, OBJECT_CEILING, OBJECT_LIMIT
from machinery.apiserver.patches import MAX_OPERATIONS, apply_json_patch
from machinery.apiserver.schema import violations
from machinery.apiserver.strategic import apply_strategic_patch
from machinery.apiserver.writes import FEW, check_size
from machinery.errors import TooLargeError

PROMISED = 0.5
"""Seconds of the processor. What these tests are about took minutes to hours."""
LONG = 50_000


@dataclass(frozen=True)
class Cost:
    seconds: float
    result: Any


def cost(work: Callable[[], Any]) -> Cost:
    """What it took, and what came of it, or the error."""
    began = process_time()
    try:
        result = work()
    except TooLargeError as error:
        result = error
    return Cost(process_time() - began, result)


def entries(count: int, key: str) -> list[dict[str, str]]:
    return [{key: f"k{number}"} for number in range(count)]


def test_many_operations_copy_a_large_document_once() -> None:
    document = {"status": {"numbers": [0] * 300_000, "one": 1}}
    found = cost(lambda: apply_json_patch(document, [{"op": "test", "path": "/status/one", "value": 1}] * MAX_OPERATIONS))
    assert found.seconds < 5 * PROMISED
    assert found.result == document


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "move", "from": "/a/0", "path": "/a/-"}] * MAX_OPERATIONS,
        [{"op": "add", "path": "/a/0", "value": 1}] * MAX_OPERATIONS,
        [{"op": "copy", "from": "/a", "path": "/b"}] * MAX_OPERATIONS,
        [{"op": "test", "path": "/a" * 200, "value": 1}] * MAX_OPERATIONS,
    ],
    ids=["move", "add", "copy", "test"],
)
def test_what_operations_ask_for_together_is_bounded(operations: list[dict[str, Any]]) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}
    documents = {"test": deep, "copy": {"a": ["x" * 100_000]}}
    document = documents.get(operations[0]["op"], {"a": [0] * 300_000})
    found = cost(lambda: apply_json_patch(document, operations))
    assert found.seconds < 5 * PROMISED
    assert isinstance(found.result, TooLargeError)


def test_an_operation_that_no_rfc_knows_is_none() -> None:
    with pytest.raises(Exception, match="unexpected operation kind: append"):
        apply_json_patch({"a": "x"}, [{"op": "append", "path": "/a", "value": "y"}])


def test_the_values_of_a_patch_are_not_changed_by_it() -> None:
    operations = [{"op": "add", "path": "/a", "value": {"b": []}}, {"op": "add", "path": "/a/b/-", "value": 1}]
    assert [apply_json_patch({}, operations) for _ in range(2)] == [{"a": {"b": [1]}}] * 2


def test_long_lists_are_merged_by_their_key_in_one_walk() -> None:
    document = {"metadata": {"ownerReferences": entries(LONG, "uid")}}
    patch = {"metadata": {"ownerReferences": [{"uid": f"k{number}", "kind": "x"} for number in range(LONG // 2, 2 * LONG)]}}
    found = cost(lambda: apply_strategic_patch(document, patch, {}))
    assert found.seconds < 5 * PROMISED
    merged = found.result["metadata"]["ownerReferences"]
    assert [each["uid"] for each in merged] == [f"k{number}" for number in range(2 * LONG)]
    assert merged[0] == {"uid": "k0"}
    assert merged[-1] == {"uid": f"k{2 * LONG - 1}", "kind": "x"}


def test_long_lists_of_names_are_joined_and_shortened_in_one_walk() -> None:
    names = [f"f/{number}" for number in range(LONG)]
    document = {"metadata": {"finalizers": names}}
    joined = cost(lambda: apply_strategic_patch(document, {"metadata": {"finalizers": [*reversed(names), "new"]}}, {}))
    freed = cost(lambda: apply_strategic_patch(document, {"metadata": {"$deleteFromPrimitiveList/finalizers": names[1:]}}, {}))
    assert max(joined.seconds, freed.seconds) < 5 * PROMISED
    assert joined.result["metadata"]["finalizers"] == [*names, "new"]
    assert freed.result["metadata"]["finalizers"] == names[:1]


def test_long_lists_are_looked_through_once_for_duplicates() -> None:
    each = {"type": "object", "properties": {"type": {"type": "string"}}}
    listed = {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"], "items": each}
    schema = {"type": "object", "properties": {"conditions": listed}}
    document = {"conditions": [*entries(LONG, "type"), {"type": "k7"}]}
    found = cost(lambda: violations(schema, document))
    assert found.seconds < 5 * PROMISED
    assert [(cause.field, cause.message) for cause in found.result] == [
        (f"conditions[{LONG}]", 'Duplicate value: {"type":"k7"}')
    ]


def test_fields_that_are_said_twice_are_counted_once() -> None:
    body = "{" + ",".join(f'"k{number}":1' for number in range(LONG)) + ',"k1":2,"k1":3}'
    found = cost(lambda: _load_json(body.encode()))
    assert found.seconds < 5 * PROMISED
    assert found.result[0] == {**json.loads(body)}
    assert found.result[1] == ['duplicate field "k1"']


def test_an_object_is_no_larger_than_what_kubernetes_would_store() -> None:
    check_size({"a": "x" * (OBJECT_LIMIT - 100)})
    assert OBJECT_LIMIT < BODY_LIMIT
    with pytest.raises(TooLargeError, match="at most 1572864 are stored"):
        check_size({"a": "x" * OBJECT_LIMIT})


def of_size(size: int) -> dict[str, Any]:
    return {"a": "x" * (size - len('{"a":""}'))}


def test_an_object_that_is_too_large_grows_by_a_few_bytes_and_not_for_ever() -> None:
    old = of_size(OBJECT_LIMIT + 1)
    check_size(of_size(OBJECT_LIMIT + 1 + FEW), old)
    with pytest.raises(TooLargeError):
        check_size(of_size(OBJECT_LIMIT + 2 + FEW), old)
    nearly = of_size(OBJECT_CEILING - 1)
    check_size(of_size(OBJECT_CEILING), nearly)
    with pytest.raises(TooLargeError):
        check_size(of_size(OBJECT_CEILING + 1), nearly)
    larger = of_size(OBJECT_CEILING + 5 * FEW)
    check_size(of_size(OBJECT_CEILING + 4 * FEW), larger)
    check_size(larger, larger)
    with pytest.raises(TooLargeError):
        check_size(of_size(OBJECT_CEILING + 5 * FEW + 1), larger)
