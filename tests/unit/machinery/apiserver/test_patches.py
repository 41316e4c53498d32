"""The three patch formats."""

from typing import Any

import pytest

from machinery.apiserver.patches import MAX_OPERATIONS, apply_json_patch, apply_merge_patch
from machinery.apiserver.strategic import apply_strategic_patch
from machinery.errors import BadRequestError, InvalidError, TooLargeError

DOCUMENT: dict[str, Any] = {
    "metadata": {"name": "a", "labels": {"x": "1"}, "finalizers": ["f/1"]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Full", "status": "False"}]},
    "list": [1, 2],
}
KEYS = {"status.conditions": "type"}


def test_a_merge_patch_merges_maps_replaces_lists_and_removes_with_null() -> None:
    patch = {"metadata": {"labels": {"x": None, "y": "2"}}, "list": [3], "new": {"deep": {"a": None, "b": 1}}}

    patched = apply_merge_patch(DOCUMENT, patch)

    assert patched["metadata"]["labels"] == {"y": "2"}
    assert patched["list"] == [3]
    assert patched["new"] == {"deep": {"b": 1}}
    assert DOCUMENT["metadata"]["labels"] == {"x": "1"}


def test_a_merge_patch_replaces_a_scalar_by_a_map() -> None:
    assert apply_merge_patch({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}


@pytest.mark.parametrize("patch", [[], 1, "x", None])
def test_a_merge_patch_is_an_object(patch: Any) -> None:
    with pytest.raises(BadRequestError):
        apply_merge_patch(DOCUMENT, patch)


def test_a_json_patch_leaves_the_given_document_alone() -> None:
    patched = apply_json_patch(
        DOCUMENT, [{"op": "add", "path": "/list/-", "value": 3}, {"op": "remove", "path": "/metadata/labels"}]
    )

    assert patched["list"] == [1, 2, 3]
    assert DOCUMENT["list"] == [1, 2]
    assert "labels" in DOCUMENT["metadata"]


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "test", "path": "/list/0", "value": 9}],
        [{"op": "remove", "path": "/nope"}],
        [{"op": "replace", "path": "/nope/deeper", "value": 1}],
        [{"op": "fly", "path": "/list"}],
        [{"op": "add", "path": "list", "value": 1}],
        [{"path": "/list"}],
        [{"op": "replace", "path": "", "value": 1}],
        [{"op": "copy", "from": "/nope", "path": "/x"}],
    ],
)
def test_a_json_patch_that_does_not_fit_is_invalid(operations: Any) -> None:
    with pytest.raises(InvalidError):
        apply_json_patch(DOCUMENT, operations)


@pytest.mark.parametrize("operations", [{"op": "x"}, "x", [1]])
def test_what_is_no_json_patch_is_a_bad_request(operations: Any) -> None:
    with pytest.raises(BadRequestError):
        apply_json_patch(DOCUMENT, operations)


def test_copies_may_not_blow_up_the_object() -> None:
    doubling = [{"op": "copy", "from": "/a", "path": f"/a/{index}"} for index in range(40)]

    with pytest.raises(TooLargeError):
        apply_json_patch({"a": {"seed": "x" * 1000}}, doubling)


def test_a_json_patch_has_a_bound() -> None:
    with pytest.raises(TooLargeError):
        apply_json_patch(DOCUMENT, [{"op": "test", "path": "/list/0", "value": 1}] * (MAX_OPERATIONS + 1))


def test_a_strategic_patch_merges_lists_by_their_key() -> None:
    patch = {"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "New", "status": "True"}]}}

    patched = apply_strategic_patch(DOCUMENT, patch, KEYS)

    assert {each["type"]: each["status"] for each in patched["status"]["conditions"]} == {
        "Ready": "False",
        "Full": "False",
        "New": "True",
    }


def test_a_strategic_patch_understands_its_directives() -> None:
    deleted = apply_strategic_patch(DOCUMENT, {"status": {"conditions": [{"type": "Full", "$patch": "delete"}]}}, KEYS)
    replaced = apply_strategic_patch(
        DOCUMENT, {"status": {"conditions": [{"type": "Only", "status": "True"}, {"$patch": "replace"}]}}, KEYS
    )
    freed = apply_strategic_patch(DOCUMENT, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["f/1"]}}, KEYS)
    whole = apply_strategic_patch(DOCUMENT, {"metadata": {"$patch": "replace", "name": "b"}}, KEYS)

    assert [each["type"] for each in deleted["status"]["conditions"]] == ["Ready"]
    assert replaced["status"]["conditions"] == [{"type": "Only", "status": "True"}]
    assert freed["metadata"]["finalizers"] == []
    assert whole["metadata"] == {"name": "b"}


def test_a_strategic_patch_adds_finalizers_and_replaces_other_lists() -> None:
    patched = apply_strategic_patch(DOCUMENT, {"metadata": {"finalizers": ["f/2"]}, "list": [9]}, KEYS)

    assert patched["metadata"]["finalizers"] == ["f/1", "f/2"]
    assert patched["list"] == [9]


def test_a_strategic_patch_without_merge_key_is_refused() -> None:
    with pytest.raises(BadRequestError, match="no merge key type"):
        apply_strategic_patch(DOCUMENT, {"status": {"conditions": [{"status": "True"}]}}, KEYS)
