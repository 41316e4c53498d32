"""Server-side apply: who wins, what goes, who holds what. The cases are structured-merge-diff's own, told anew."""

from typing import Any

import pytest

from machinery.errors import ConflictError
from machinery.managedfields.structure import Structure, structure
from tests.fakes.managedfields import SCHEMA, STRUCTURE, V1, World

A = 'k:{"name":"a"}'


def test_an_applier_takes_what_nobody_holds() -> None:
    world = World()
    world.update("creator", {"number": 1})

    world.apply("one", {"text": "a"})

    assert world.content == {"number": 1, "text": "a"}
    assert world.shares == {"creator": {"f:number": {}}, "one!": {"f:text": {}}}


def test_a_conflict_names_every_field_and_its_holder() -> None:
    world = World()
    world.apply("one", {"number": 1, "list": [{"name": "a", "value": 1}]})
    world.update("two", {**world.content, "text": "a"}, subresource="status")

    with pytest.raises(ConflictError) as refusal:
        world.apply("three", {"number": 2, "text": "b", "list": [{"name": "a", "value": 2}]})

    error = refusal.value
    assert error.message == (
        'Apply failed with 3 conflicts: conflicts with "one":\n- .number\n- .list[name="a"].value\n'
        f'conflicts with "two" with subresource "status" using {V1}:\n- .text'
    )
    assert [(cause.reason, cause.message, cause.field) for cause in error.causes] == [
        ("FieldManagerConflict", 'conflict with "one"', ".number"),
        ("FieldManagerConflict", 'conflict with "one"', '.list[name="a"].value'),
        ("FieldManagerConflict", f'conflict with "two" with subresource "status" using {V1}', ".text"),
    ]


def test_one_conflict_is_told_in_one_line() -> None:
    world = World()
    world.apply("one", {"number": 1})

    with pytest.raises(ConflictError, match=r'^Apply failed with 1 conflict: conflict with "one": \.number$'):
        world.apply("two", {"number": 2})


def test_a_refused_apply_changes_nothing() -> None:
    world = World()
    world.apply("one", {"number": 1})
    before = (world.content, world.holdings)

    with pytest.raises(ConflictError):
        world.apply("two", {"number": 2, "text": "new"})

    assert (world.content, world.holdings) == before


def test_force_takes_the_field_from_its_holder() -> None:
    world = World()
    world.apply("one", {"number": 1, "text": "a"})

    world.apply("two", {"number": 2}, force=True)

    assert world.content == {"number": 2, "text": "a"}
    assert world.shares == {"one!": {"f:text": {}}, "two!": {"f:number": {}}}


def test_who_applies_the_same_value_shares_the_field() -> None:
    world = World()
    world.apply("one", {"number": 1})

    world.apply("two", {"number": 1, "text": "a"})

    assert world.shares == {"one!": {"f:number": {}}, "two!": {"f:number": {}, "f:text": {}}}


def test_a_shared_field_stays_when_one_of_its_holders_gives_it_up() -> None:
    world = World()
    world.apply("one", {"number": 1, "text": "a"})
    world.apply("two", {"number": 1})

    world.apply("one", {"text": "a"})
    assert world.content == {"number": 1, "text": "a"}

    world.apply("two", {})
    assert world.content == {"text": "a"}
    assert world.shares == {"one!": {"f:text": {}}}


def test_what_is_applied_no_more_goes() -> None:
    world = World()
    world.apply("one", {"number": 1, "inner": {"left": "a"}, "names": {"x": "1", "y": "2"}, "set": ["a", "b"]})

    world.apply("one", {"names": {"y": "2"}, "set": ["b"]})

    assert world.content == {"names": {"y": "2"}, "set": ["b"]}


def test_what_an_updater_holds_too_stays_when_the_applier_gives_it_up() -> None:
    world = World()
    world.update("updater", {"inner": {"left": "a"}})
    world.apply("one", {"inner": {"left": "a", "right": "b"}})

    world.apply("one", {"number": 1})

    assert world.content == {"inner": {"left": "a"}, "number": 1}


def test_what_the_applier_never_held_stays() -> None:
    world = World()
    world.apply("one", {"inner": {"left": "a"}})
    world.update("updater", {"inner": {"left": "a", "right": "b"}})

    world.apply("one", {})

    assert world.content == {"inner": {"right": "b"}}


def test_what_nobody_holds_stays_beside_what_somebody_holds() -> None:
    world = World()
    world.apply("one", {"names": {"x": "1"}})
    world.update("updater", {"names": {"x": "1", "y": "2"}})
    world.live = {**world.live, "names": {**world.live["names"], "z": "3"}}

    world.apply("one", {})

    assert world.content == {"names": {"y": "2", "z": "3"}}


def test_an_entry_goes_with_the_last_of_its_appliers() -> None:
    world = World()
    world.apply("one", {"list": [{"name": "a"}, {"name": "b"}]})
    world.apply("two", {"list": [{"name": "c"}, {"name": "b", "value": 1}]})

    world.apply("one", {"list": [{"name": "a"}]})
    assert {entry["name"] for entry in world.content["list"]} == {"a", "b", "c"}

    world.apply("two", {"list": [{"name": "c"}]})
    assert {entry["name"] for entry in world.content["list"]} == {"a", "c"}


def test_an_entry_goes_with_its_holder_and_with_what_others_wrote_into_it() -> None:
    world = World()
    world.apply("one", {"list": [{"name": "a"}]})
    world.update("updater", {"list": [{"name": "a", "value": 7}]})
    assert world.shares["updater"] == {"f:list": {A: {"f:value": {}}}}

    world.apply("one", {})

    assert (world.content, world.shares) == ({}, {})


def test_an_updater_takes_fields_from_an_applier_without_a_question() -> None:
    world = World()
    world.apply("one", {"number": 1, "text": "a"})

    world.update("updater", {"number": 2, "text": "a"})

    assert world.shares == {"one!": {"f:text": {}}, "updater": {"f:number": {}}}


def test_a_field_that_an_updater_removes_is_nobodys() -> None:
    world = World()
    world.apply("one", {"number": 1, "text": "a"})

    world.update("updater", {"number": 1})

    assert world.shares == {"one!": {"f:number": {}}}


def test_a_holder_of_nothing_is_forgotten() -> None:
    world = World()
    world.apply("one", {"number": 1})
    world.apply("two", {"number": 1})

    world.apply("one", {})

    assert world.shares == {"two!": {"f:number": {}}}
    assert world.content == {"number": 1}


def test_an_applier_of_nothing_holds_nothing() -> None:
    world = World()

    world.apply("one", {})

    assert world.shares == {}


def test_an_atomic_list_has_one_holder() -> None:
    world = World()
    world.apply("one", {"whole": ["a"]})

    with pytest.raises(ConflictError, match=r"\.whole"):
        world.apply("two", {"whole": ["a", "b"]})
    world.apply("two", {"whole": ["a", "b"]}, force=True)

    assert (world.content, world.shares) == ({"whole": ["a", "b"]}, {"two!": {"f:whole": {}}})


def test_a_set_has_a_holder_per_value() -> None:
    world = World()
    world.apply("one", {"set": ["a", "b"]})
    world.apply("two", {"set": ["b", "c"]})

    world.apply("one", {"set": ["a"]})

    assert sorted(world.content["set"]) == ["a", "b", "c"]
    assert world.shares == {"one!": {"f:set": {'v:"a"': {}}}, "two!": {"f:set": {'v:"b"': {}, 'v:"c"': {}}}}


def test_entries_with_default_keys_are_the_same_entry() -> None:
    world = World()
    world.apply("one", {"ports": [{"name": "a", "value": 1}]})

    with pytest.raises(ConflictError, match=r'\.ports\[name="a",protocol="TCP"\]\.value'):
        world.apply("two", {"ports": [{"name": "a", "protocol": "TCP", "value": 2}]})
    world.apply("two", {"ports": [{"name": "a", "protocol": "UDP", "value": 2}]})

    assert len(world.content["ports"]) == 2


def test_twins_in_the_live_list_stay_until_somebody_applies_their_key() -> None:
    world = World()
    twins = [{"name": "a", "value": 1}, {"name": "a", "value": 2}]
    world.update("updater", {"list": twins})

    world.apply("one", {"list": [{"name": "b"}]})
    assert world.content["list"] == [*twins, {"name": "b"}]
    assert world.shares["updater"] == {"f:list": {".": {}, A: {}}}

    world.apply("one", {"list": [{"name": "a", "value": 3}, {"name": "b"}]}, force=True)
    assert world.content["list"] == [{"name": "a", "value": 3}, {"name": "b"}]


def test_an_apply_that_changes_nothing_keeps_its_time() -> None:
    world = World()
    world.apply("one", {"number": 1})
    first = world.holding("one!").time

    result = world.apply("one", {"number": 1})

    assert not result.changed
    assert world.holding("one!").time == first


def test_who_joins_without_changing_anything_has_no_time() -> None:
    world = World()
    world.apply("one", {"number": 1})

    world.apply("two", {"number": 1})

    assert world.holding("two!").time is None


def test_an_update_that_only_removes_keeps_the_time_of_its_writer() -> None:
    world = World()
    world.update("updater", {"number": 1, "text": "a"})
    first = world.holding("updater").time

    world.update("updater", {"number": 1})

    assert (world.holding("updater").time, world.shares) == (first, {"updater": {"f:number": {}}})


def test_updaters_beyond_the_tenth_become_one() -> None:
    world = World()
    for turn in range(13):
        world.update(f"u{turn:02}", {"names": {f"n{number}": "1" for number in range(turn + 1)}})

    assert sorted(world.shares) == ["ancient-changes", *(f"u{turn:02}" for turn in range(4, 13))]
    ancient = world.shares["ancient-changes"]["f:names"]
    assert [name for name in ancient if name.startswith("f:n")] == ["f:n0", "f:n1", "f:n2", "f:n3"]
    assert world.holding("ancient-changes").time == "2026-11-21T00:00:04Z"


def test_appliers_are_never_made_one() -> None:
    world = World()
    for turn in range(13):
        world.apply(f"a{turn}", {"names": {f"n{turn}": "1"}})

    assert len(world.shares) == 13


def test_a_map_that_becomes_atomic_is_held_as_a_whole_by_who_held_a_part() -> None:
    inner = {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"left": {"type": "string"}}}
    later = structure({**SCHEMA, "properties": {**SCHEMA["properties"], "inner": inner}})
    world = World(_Changing(STRUCTURE, later))
    world.apply("one", {"inner": {"left": "a"}})
    _Changing.now = 1

    try:
        world.apply("two", {"number": 1})
        with pytest.raises(ConflictError, match=r'conflict with "one": \.inner$'):
            world.apply("two", {"number": 1, "inner": {"right": "b"}})
    finally:
        _Changing.now = 0

    assert world.shares["one!"] == {"f:inner": {}}


class _Changing:
    """One version whose schema changes with a new release."""

    now = 0

    def __init__(self, *structures: Structure) -> None:
        self._structures = structures

    def structure(self, api_version: str) -> Structure:
        del api_version
        return self._structures[self.now]

    def converted(self, document: Any, api_version: str) -> Any:
        del api_version
        return document


class _Renaming:
    """Two versions: what v1 calls `text` is `label` in v2; v0 is served no more."""

    _v2 = structure({"type": "object", "properties": {**SCHEMA["properties"], "label": {"type": "string"}}})

    def structure(self, api_version: str) -> Structure | None:
        return {V1: STRUCTURE, "example.com/v2": self._v2}.get(api_version)

    def converted(self, document: Any, api_version: str) -> dict[str, Any]:
        old, new = ("text", "label") if api_version.endswith("v2") else ("label", "text")
        renamed = {new if name == old else name: value for name, value in document.items()}
        return {**renamed, "apiVersion": api_version}


def test_fields_are_held_in_the_version_of_their_writer() -> None:
    world = World(_Renaming())
    world.apply("one", {"text": "a", "number": 1})

    with pytest.raises(ConflictError, match=r'conflict with "one": \.text'):
        world.apply("two", {"label": "b"}, api_version="example.com/v2")
    world.apply("two", {"label": "b"}, force=True, api_version="example.com/v2")

    assert world.shares == {"one!": {"f:number": {}}, "two!": {"f:label": {}}}
    assert world.content == {"number": 1, "label": "b"}


def test_an_applier_that_changes_its_version_gives_up_what_it_applied_in_the_old_one() -> None:
    world = World(_Renaming())
    world.apply("one", {"text": "a", "number": 1})

    world.apply("one", {"number": 1}, api_version="example.com/v2")

    assert world.content == {"number": 1}
    assert world.holding("one!").api_version == "example.com/v2"


def test_what_is_held_in_another_version_stays_when_an_applier_gives_it_up() -> None:
    world = World(_Renaming())
    world.apply("one", {"text": "a", "number": 1})
    world.apply("two", {"label": "a"}, api_version="example.com/v2")

    world.apply("one", {"number": 1})

    assert world.content == {"number": 1, "text": "a"}
    assert world.shares == {"one!": {"f:number": {}}, "two!": {"f:label": {}}}


def test_who_wrote_in_a_version_that_is_served_no_more_is_forgotten() -> None:
    world = World(_Renaming())
    world.apply("one", {"number": 1})
    writer = next(iter(world.holdings))
    world.holdings = {writer: type(world.holdings[writer])("example.com/v0", world.holdings[writer].fields, None)}

    world.apply("two", {"number": 2})

    assert world.shares == {"two!": {"f:number": {}}}
