"""Server-side apply: who wins, what goes, who holds what. The cases are those of structured-merge-diff."""

import json
from functools import partial
from typing import Any

import pytest
import yaml

from machinery.apiserver.kinds.core import NAMESPACE
from machinery.apiserver.write.metadata import FieldOwnership, with_managed_fields
from machinery.errors import ConflictError
from machinery.meta.managedfields.applying import Conflict, conflicts
from machinery.meta.managedfields.configurations import ANNOTATION, KUBECTL, real_conflicts, with_note
from machinery.meta.managedfields.ownership import Versions, applier, comparisons
from machinery.meta.managedfields.structure import Structure, structure
from tests.checks import CASE_FILES, check_each, refusal
from tests.fakes.managedfields import SCHEMA, STRUCTURE, V1, OneVersion, World


def played(*writes: tuple[str, dict[str, Any]], versions: Versions | None = None) -> World:
    """A world after these writes: those of "name!" are applied, others are updates."""
    world = World(versions)
    for manager, document in writes:
        write = world.apply if manager.endswith("!") else world.update
        write(manager.removesuffix("!"), document)
    return world


def test_conflict_names_fields_and_holders_and_force_takes_them() -> None:
    world = played(("one!", {"number": 1, "list": [{"name": "a", "value": 1}]}))
    world.update("two", {**world.content, "text": "a"}, subresource="status")
    with pytest.raises(ConflictError) as refusal:
        world.apply("three", {"number": 2, "text": "b", "list": [{"name": "a", "value": 2}]})
    two = f'"two" with subresource "status" using {V1}'
    assert refusal.value.message == (
        'Apply failed with 3 conflicts: conflicts with "one":\n- .number\n- .list[name="a"].value\n'
        f"conflicts with {two}:\n- .text"
    )
    holders = ((".number", '"one"'), ('.list[name="a"].value', '"one"'), (".text", two))
    told = [(cause.reason, cause.message, cause.field) for cause in refusal.value.causes]
    assert told == [("FieldManagerConflict", f"conflict with {holder}", field) for field, holder in holders]


HISTORIES: list[list[dict[str, Any]]] = yaml.safe_load((CASE_FILES / "applying.yaml").read_text())


def test_histories_of_writes_have_their_content_their_holders_and_their_conflicts() -> None:
    check_each(lambda steps: check_history(World(_Renaming()), steps), ((steps,) for steps in HISTORIES))


def check_history(world: World, steps: list[dict[str, Any]]) -> None:
    for step in steps:
        if {"content", "holders"} & set(step):
            assert world.content == step.get("content", world.content), step
            assert world.shares == step.get("holders", world.shares), step
            continue
        manager = next(iter(step))
        version = f"example.com/{step.get('version', 'v1')}"
        if not manager.endswith("!"):
            world.update(manager, step[manager], api_version=version)
            continue
        apply = partial(world.apply, manager.removesuffix("!"), step[manager], force="force" in step, api_version=version)
        assert str(refusal(ConflictError, apply) or "") == step.get("refused", ""), step


def test_fields_no_longer_applied_go_unless_somebody_else_holds_them() -> None:
    world = played(("one!", {"names": {"x": "1"}}), ("updater", {"names": {"x": "1", "y": "2"}}))
    world.live = {**world.live, "names": {**world.live["names"], "z": "3"}}
    world.apply("one", {})
    assert world.content == {"names": {"y": "2", "z": "3"}}

    rows: list[dict[str, Any]] = [{}, {"labels": {}}, {"labels": None}]
    for metadata in rows:
        document, holdings = MINE.applied(manifest(labels={"team": "north"}), None, force=False)
        stored = with_managed_fields({**document, "metadata": {**document["metadata"], **OF_THE_SERVER}}, holdings)
        after, _ = MINE.applied(manifest(**metadata), stored, force=False)
        kept = {name: value for name, value in after["metadata"].items() if name != "managedFields"}
        assert kept == {"name": "edge", **OF_THE_SERVER}


def test_applier_takes_free_fields_and_shares_equal_ones() -> None:
    world = played(("one!", {"number": 1, "text": "a"}))
    first = world.holding("one!").time
    assert not world.apply("one", {"number": 1, "text": "a"}).changed
    assert world.holding("one!").time == first
    world.apply("two", {"number": 1})
    assert world.shares == {"one!": {"f:number": {}, "f:text": {}}, "two!": {"f:number": {}}}
    assert world.holding("two!").time is None
    world.apply("one", {"text": "a"})
    assert world.content == {"number": 1, "text": "a"}
    world.apply("two", {})
    assert (world.content, world.shares) == ({"text": "a"}, {"one!": {"f:text": {}}})

    world = played(("updater", {"number": 1, "text": "a"}))
    first = world.holding("updater").time
    world.update("updater", {"number": 1})
    assert (world.holding("updater").time, world.shares) == (first, {"updater": {"f:number": {}}})

    world = World()
    for turn in range(13):
        world.update(f"u{turn:02}", {"names": {f"n{number}": "1" for number in range(turn + 1)}})
    assert sorted(world.shares) == ["ancient-changes", *(f"u{turn:02}" for turn in range(4, 13))]
    ancient = world.shares["ancient-changes"]["f:names"]
    assert [name for name in ancient if name.startswith("f:n")] == ["f:n0", "f:n1", "f:n2", "f:n3"]
    assert world.holding("ancient-changes").time == "2026-11-21T00:00:04Z"
    world = World()
    for turn in range(13):
        world.apply(f"a{turn}", {"names": {f"n{turn}": "1"}})
    assert len(world.shares) == 13


def test_a_map_that_becomes_atomic_is_held_as_a_whole_by_who_held_a_part() -> None:
    inner = {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"left": {"type": "string"}}}
    later = structure({**SCHEMA, "properties": {**SCHEMA["properties"], "inner": inner}})
    versions = OneVersion(STRUCTURE)
    world = played(("one!", {"inner": {"left": "a"}}), versions=versions)
    versions._only = later
    world.apply("two", {"number": 1})
    with pytest.raises(ConflictError, match=r'conflict with "one": \.inner$'):
        world.apply("two", {"number": 1, "inner": {"right": "b"}})
    assert world.shares["one!"] == {"f:inner": {}}


class _Renaming:
    """Two versions: what v1 calls `text` is `label` in v2; v0 is served no more."""

    _v2 = structure({"type": "object", "properties": {**SCHEMA["properties"], "label": {"type": "string"}}})

    def structure(self, api_version: str) -> Structure | None:
        return {V1: STRUCTURE, "example.com/v2": self._v2}.get(api_version)

    def converted(self, document: Any, api_version: str) -> dict[str, Any]:
        old, new = ("text", "label") if api_version.endswith("v2") else ("label", "text")
        renamed = {new if name == old else name: value for name, value in document.items()}
        return {**renamed, "apiVersion": api_version}


def test_fields_are_held_in_the_api_version_of_their_writer() -> None:
    world = played(("one!", {"text": "a", "number": 1}), versions=_Renaming())
    world.apply("one", {"number": 1}, api_version="example.com/v2")
    assert world.content == {"number": 1}
    assert world.holding("one!").api_version == "example.com/v2"
    writer = next(iter(world.holdings))
    world.holdings = {writer: type(world.holdings[writer])("example.com/v0", world.holdings[writer].fields, None)}
    world.apply("two", {"number": 2})
    assert world.shares == {"two!": {"f:number": {}}}


MOST = 1000


def live(note: str | None, **content: Any) -> dict[str, Any]:
    metadata = {"name": "a", **({"annotations": {ANNOTATION: note, "other": "kept"}} if note is not None else {})}
    return {"apiVersion": V1, "metadata": metadata, **content}


def found_between(before: dict[str, Any], after: dict[str, Any]) -> list[Conflict]:
    world = World()
    world.update("kubectl-client-side-apply", before)
    return conflicts(comparisons(world.versions, before, {**before, **after}), world.holdings, applier(KUBECTL))


def fields(found: list[Conflict]) -> list[str]:
    return [path[-1] for _, _, path in found]


def test_last_applied_annotation_excuses_conflicts_and_is_updated_where_it_fits() -> None:
    noted = json.dumps({"apiVersion": V1, "number": 1, "text": "a"})
    document = live(noted, number=1, text="changed", inner={"left": "x"})
    found = found_between(document, {"number": 2, "text": "b", "inner": {"left": "y"}})
    assert fields(found) == ["f:number", "f:text", "f:left"]
    assert fields(real_conflicts(STRUCTURE, document, found)) == ["f:text", "f:left"]
    rows: list[str | None] = [None, "", "no JSON", "[]", "5", json.dumps({"apiVersion": "example.com/v0", "number": 1})]
    for note in rows:
        document = live(note, number=1)
        found = found_between(document, {"number": 2})
        assert real_conflicts(STRUCTURE, document, found) == found, note

    config = {"apiVersion": V1, "metadata": {"name": "a", "annotations": {ANNOTATION: "old", "mine": "1"}}, "number": 2}
    annotations = with_note(live("old", number=2), config, MOST)["metadata"]["annotations"]
    assert annotations["other"] == "kept"
    assert annotations[ANNOTATION].endswith("\n")
    assert json.loads(annotations[ANNOTATION]) == {**config, "metadata": {"name": "a", "annotations": {"mine": "1"}}}
    for absent in (None, ""):
        document = live(absent, number=1)
        assert with_note(document, {"number": 1}, MOST) == document
    too_large = with_note(live("old", number=2), {"text": "x" * MOST}, MOST)
    assert too_large["metadata"]["annotations"] == {"other": "kept"}


MINE = FieldOwnership(NAMESPACE, "ann", "v1", "", "2026-01-01T00:00:00Z")
OF_THE_SERVER = {"uid": "u", "resourceVersion": "5", "creationTimestamp": "2026-01-01T00:00:00Z"}


def manifest(**metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "edge", **metadata}}
