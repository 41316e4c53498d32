"""From client-side apply to server-side apply: what is no conflict, and what the annotation says afterwards."""

import json
from typing import Any

import pytest

from machinery.managedfields import lastapplied
from machinery.managedfields.lastapplied import ANNOTATION, real_conflicts, with_note
from machinery.managedfields.updating import Comparisons, Conflict, conflicts
from tests.fakes.managedfields import STRUCTURE, V1, World

MOST = 1000


def live(note: str | None, **content: Any) -> dict[str, Any]:
    metadata = {"name": "a", **({"annotations": {ANNOTATION: note, "other": "kept"}} if note is not None else {})}
    return {"apiVersion": V1, "metadata": metadata, **content}


def found_between(before: dict[str, Any], after: dict[str, Any]) -> list[Conflict]:
    world = World()
    world.update("kubectl-client-side-apply", before)
    applier = next(iter(world.holdings))
    comparisons = Comparisons(world.versions, before, {**before, **after})
    return conflicts(comparisons, world.holdings, type(applier)("kubectl", applier.operation))


def fields(found: list[Conflict]) -> list[str]:
    return [path[-1] for _, _, path in found]


def test_what_was_applied_at_the_clients_side_and_stands_is_no_conflict() -> None:
    noted = json.dumps({"apiVersion": V1, "number": 1, "text": "a"})
    document = live(noted, number=1, text="changed", inner={"left": "x"})

    found = found_between(document, {"number": 2, "text": "b", "inner": {"left": "y"}})

    assert fields(found) == ["f:number", "f:text", "f:left"]
    assert fields(real_conflicts(STRUCTURE, document, found)) == ["f:text", "f:left"]


@pytest.mark.parametrize("note", [None, "", "no JSON", "[]", "5", json.dumps({"apiVersion": "example.com/v0", "number": 1})])
def test_a_note_that_says_nothing_excuses_nothing(note: str | None) -> None:
    document = live(note, number=1)

    found = found_between(document, {"number": 2})

    assert real_conflicts(STRUCTURE, document, found) == found


def test_the_note_tells_what_was_applied_last() -> None:
    config = {"apiVersion": V1, "metadata": {"name": "a", "annotations": {ANNOTATION: "old", "mine": "1"}}, "number": 2}

    noted = with_note(live("old", number=2), config, MOST)

    annotations = noted["metadata"]["annotations"]
    assert annotations["other"] == "kept"
    assert annotations[ANNOTATION].endswith("\n")
    assert json.loads(annotations[ANNOTATION]) == {**config, "metadata": {"name": "a", "annotations": {"mine": "1"}}}


def test_an_object_without_a_note_gets_none() -> None:
    for note in (None, ""):
        document = live(note, number=1)
        assert with_note(document, {"number": 1}, MOST) == document


def test_a_note_that_is_too_long_goes() -> None:
    noted = with_note(live("old", number=2), {"text": "x" * MOST}, MOST)

    assert noted["metadata"]["annotations"] == {"other": "kept"}
    assert lastapplied.KUBECTL == "kubectl"
