"""Patches of any shape: what comes of them is a document or a refusal, never an error of ours."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machinery.apiserver.patches import OPERATIONS, apply_json_patch, apply_merge_patch
from machinery.apiserver.strategic import apply_strategic_patch
from machinery.errors import BadRequestError, InvalidError
from tests.trials import examples

NAMES = st.sampled_from(
    ["metadata", "finalizers", "ownerReferences", "uid", "status", "conditions", "type", "$patch", "a", "-", "0"]
    + [f"$deleteFromPrimitiveList/{name}" for name in ("finalizers", "conditions", "a")]
)
SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = SCALARS | st.sampled_from(["replace", "delete", "merge", "x"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=12
)
METADATA = st.fixed_dictionaries({}, optional={"finalizers": VALUES, "ownerReferences": VALUES})
DOCUMENTS = st.fixed_dictionaries({"metadata": METADATA}, optional={"status": VALUES, "a": VALUES})
PATCHES = st.fixed_dictionaries({"metadata": VALUES}, optional={"status": VALUES, "a": VALUES}) | VALUES
PATHS = st.lists(NAMES, max_size=4).map(lambda parts: "".join(f"/{part}" for part in parts)) | VALUES
STEPS = st.fixed_dictionaries(
    {}, optional={"op": st.sampled_from([*OPERATIONS, "append", 1]), "path": PATHS, "from": PATHS, "value": VALUES}
)
KEYS = {"status.conditions": "type"}


@examples(test=150, soak=20_000)
@given(DOCUMENTS, PATCHES)
def test_a_merge_or_strategic_patch_gives_an_object_or_a_refusal(document: dict[str, Any], patch: Any) -> None:
    with suppress(BadRequestError, InvalidError):
        assert isinstance(apply_merge_patch(document, patch), dict)
    with suppress(BadRequestError, InvalidError):
        assert isinstance(apply_strategic_patch(document, patch, KEYS), dict)


@examples(test=150, soak=20_000)
@given(DOCUMENTS, st.lists(STEPS, max_size=4) | VALUES)
def test_a_json_patch_gives_an_object_or_a_refusal(document: dict[str, Any], operations: Any) -> None:
    with suppress(BadRequestError, InvalidError):
        assert isinstance(apply_json_patch(document, operations), dict)


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"$deleteFromPrimitiveList/finalizers": 1}},
        {"metadata": {"$deleteFromPrimitiveList/name": ["a"]}},
        {"metadata": {"ownerReferences": [{"uid": "1"}]}},
    ],
    ids=["value", "field", "entry"],
)
def test_a_directive_that_does_not_fit_is_a_bad_request(patch: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        apply_strategic_patch({"metadata": {"name": "a", "ownerReferences": ["x"]}}, patch, {})
