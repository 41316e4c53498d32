"""Documents change by copying, and nobody chooses what is the store's."""

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from hub.domain import document as doc
from machinery.conditions import Condition

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DOCUMENT: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Thing",
    "metadata": {"name": "a", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 3},
    "spec": {"size": 1},
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "size": 1},
}


def test_parts_that_are_absent_or_of_another_type_read_as_empty() -> None:
    odd: dict[str, Any] = {"metadata": {"labels": None, "annotations": ["x"], "finalizers": "x"}, "status": None}
    assert (doc.labels(odd), doc.annotations(odd), doc.finalizers(odd), doc.conditions(odd)) == ({}, {}, (), [])
    assert (doc.name({}), doc.is_deleting({})) == ("", False)
    assert str(doc.key(DOCUMENT)) == "n/a"


def test_copies_leave_the_original_alone() -> None:
    original = deepcopy(DOCUMENT)
    doc.with_spec(DOCUMENT, size=2)
    doc.with_status(DOCUMENT, size=2)
    doc.with_annotations(DOCUMENT, {"note": "x"})
    doc.with_status_condition(DOCUMENT, Condition("Ready", "False", "R", "m"), NOW)
    doc.deleting(DOCUMENT, NOW)
    doc.stamped(DOCUMENT, None, uid="v", now=NOW, generations=True)
    doc.typed(DOCUMENT, "v2", "Other")
    assert original == DOCUMENT


def test_new_object_gets_uid_creation_and_first_generation_whatever_it_claims() -> None:
    metadata = doc.stamped(DOCUMENT, None, uid="fresh", now=NOW, generations=True)["metadata"]
    assert metadata == {
        "name": "a",
        "namespace": "n",
        "uid": "fresh",
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "generation": 1,
    }


def test_changed_object_keeps_uid_and_creation_whatever_it_claims() -> None:
    claimed = doc.with_metadata(DOCUMENT, uid="other", creationTimestamp="2020-01-01T00:00:00Z", generation=99)
    metadata = doc.stamped(claimed, DOCUMENT, uid="unused", now=NOW, generations=True)["metadata"]
    assert metadata == DOCUMENT["metadata"]


@pytest.mark.parametrize(
    ("changed", "generation"),
    [
        (doc.with_spec(DOCUMENT, size=2), 4),
        (doc.with_status(DOCUMENT, size=2), 3),
        (doc.with_annotations(DOCUMENT, {"note": "x"}), 3),
        (doc.deleting(DOCUMENT, NOW), 4),
        (DOCUMENT, 3),
    ],
)
def test_generation_counts_changes_of_what_is_wanted(changed: dict[str, Any], generation: int) -> None:
    stamped = doc.stamped(changed, DOCUMENT, uid="u", now=NOW, generations=True)
    assert stamped["metadata"]["generation"] == generation


def test_kind_without_generations_gets_none() -> None:
    assert "generation" not in doc.stamped(DOCUMENT, None, uid="u", now=NOW, generations=False)["metadata"]


def test_revision_alone_is_no_difference() -> None:
    assert not doc.differs(doc.with_metadata(DOCUMENT, resourceVersion="7"), DOCUMENT)
    assert doc.differs(doc.with_spec(DOCUMENT, size=2), DOCUMENT)


def test_type_stands_first() -> None:
    assert list(doc.typed({"spec": {}, "kind": "x"}, "v1", "Thing").items()) == [
        ("apiVersion", "v1"),
        ("kind", "Thing"),
        ("spec", {}),
    ]
