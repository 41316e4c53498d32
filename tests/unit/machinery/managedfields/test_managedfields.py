"""Field sets and server-side apply: algebra, notation, merging, conflicts; the cases are those of structured-merge-diff."""

import json
from functools import partial, reduce
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings, strategies as st

from machinery.apiserver.kinds.core import NAMESPACE
from machinery.apiserver.write.metadata import FieldOwnership, with_managed_fields
from machinery.errors import ConflictError
from machinery.meta.managedfields import fieldset, ownership as held
from machinery.meta.managedfields.applying import Conflict, conflicts, merge
from machinery.meta.managedfields.comparing import compare, fields_of, reconciled, with_named, without
from machinery.meta.managedfields.configurations import ANNOTATION, KUBECTL, real_conflicts, with_note
from machinery.meta.managedfields.fieldset import Fields, common, decoded, minus, of_paths, paths, union
from machinery.meta.managedfields.ownership import NOBODYS, Holdings, Versions, applier, comparisons
from machinery.meta.managedfields.structure import DEEPEST_OPEN, FieldForm, Structure, structure
from tests.checks import CASE_FILES, check_each, check_refusals, refusal
from tests.fakes.managedfields import SCHEMA, STRUCTURE, V1, OneVersion, World

A, B = "f:a", "f:b"


def test_notation_is_ordered_and_foreign_notation_normalized_or_refused() -> None:
    assert (of_paths((A,), (A, B)), of_paths((A, B))) == ({A: {".": {}, B: {}}}, {A: {B: {}}})
    ports = [fieldset.key({"port": 443}), fieldset.key({"port": 80}), fieldset.value("b"), fieldset.value("a"), A]
    in_order = list(fieldset.in_order(of_paths(*((port,) for port in ports))))
    assert in_order == [A, 'k:{"port":80}', 'k:{"port":443}', 'v:"a"', 'v:"b"']
    path = ("f:status", "f:conditions", 'k:{"type":"Ready"}', "f:status")
    assert fieldset.shown(path) == '.status.conditions[type="Ready"].status'
    assert fieldset.shown(("f:metadata", "f:finalizers", 'v:"a/b"')) == '.metadata.finalizers[="a/b"]'
    assert fieldset.shown(("f:ports", 'k:{"port":80,"protocol":"TCP"}', "i:3")) == '.ports[port=80,protocol="TCP"][3]'

    ours: dict[str, str | None] = {'k:{"b":1,"a":"x"}': 'k:{"a":"x","b":1}', 'k:{"port": 80.0}': 'k:{"port":80}', "i:07": "i:7"}
    ours |= {'v:"\\u003cx\\u003e"': 'v:"<x>"', "f:with:colon": "f:with:colon", "x:from the future": None}
    assert {sent: fieldset.canonical(sent) for sent in ours} == ours

    deep: dict[str, object] = {}
    for _ in range(fieldset.DEEPEST + 1):
        deep = {A: deep}
    malformed: list[object] = [[], {"spec": {}}, {"f": {}}, {"k:[]": {}}, {"v:{": {}}, {"i:x": {}}, {"f:a": 1}]
    check_refusals(ValueError, decoded, [*((wrong, ".") for wrong in malformed), (deep, "nested")])

    assert (decoded({"z:new": {}, A: {"z:new": {}}}), decoded({"z:new": {}, ".": {}, A: {".": {}}})) == ({}, of_paths((A,)))
    assert decoded({'k:{"b":1,"a":2}': {A: {}}, 'k:{"a":2,"b":1}': {}}) == {'k:{"a":2,"b":1}': {".": {}, A: {}}}


READY = 'k:{"name":"a"}'
TABLES: dict[str, list[dict[str, Any]]] = yaml.safe_load((CASE_FILES / "fieldset.yaml").read_text())


def test_owners_with_a_time_that_go_cannot_read_are_refused() -> None:
    entry = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {A: {}}}
    check_refusals(
        held.UnreadableError, held.read, [([{**entry, "time": time}], "RFC 3339") for time in ("soon", "2026-11-21T07Z")]
    )
    wrong: tuple[Any, ...] = (0, False, [], {})
    assert [each.time for time in wrong for each in held.read([{**entry, "time": time}]).values()] == [None] * 4


def test_documents_are_compared_by_field() -> None:
    for row in TABLES["compared"]:
        found = compare(STRUCTURE, row["old"], row["new"])
        assert (found.removed, found.written) == (row["removed"], row["written"]), row
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"a": deep, "b": 1}
    assert max(len(path) for path in paths(compare(STRUCTURE, {}, {"open": deep}).written)) == DEEPEST_OPEN + 1
    assert decoded(fields_of(STRUCTURE, {"open": deep})) == fields_of(STRUCTURE, {"open": deep})
    assert merge(STRUCTURE, {"open": deep}, {"open": deep}) == {"open": deep}


def test_applied_document_has_fields_without_the_maps_around_them() -> None:
    assert [row for row in TABLES["applied"] if fields_of(STRUCTURE, row["document"]) != row["fields"]] == []

    fields = fields_of(STRUCTURE, {"inner": {"left": "a"}, "open": {"a": {"b": 1}}})
    named = with_named(STRUCTURE, minus(fields, fields_of(STRUCTURE, {"open": {"a": {}}})))
    assert named == {"f:inner": {".": {}, "f:left": {}}, "f:open": {".": {}, "f:a": {"f:b": {}}}}

    inner = {"type": "object", "x-kubernetes-map-type": "atomic"}
    atomic = structure({**SCHEMA, "properties": {**SCHEMA["properties"], "inner": inner}})
    fields = reconciled(atomic, fields_of(STRUCTURE, {"inner": {"left": "a"}, "number": 1}))
    assert (fields, reconciled(STRUCTURE, {})) == ({"f:inner": {}, "f:number": {}}, {})


def named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


def test_merged_configuration_wins_and_keeps_order_and_removal_leaves_null_for_what_is_empty() -> None:
    document = {
        "inner": {"left": "a", "right": "b"},
        "names": {"a": "1"},
        "set": ["a", "b"],
        "list": [{"name": "a", "value": 1, "tags": ["x"]}],
        "whole": ["a"],
    }
    gone = fields_of(STRUCTURE, {"inner": {"left": "a"}, "names": {"a": "1"}, "set": ["a"]})
    tags = minus(
        fields_of(STRUCTURE, {"list": [{"name": "a", "tags": ["x"]}]}), fields_of(STRUCTURE, {"list": [{"name": "a"}]})
    )
    assert without(STRUCTURE, document, union(gone, tags)) == {
        "inner": {"right": "b"},
        "names": None,
        "set": ["b"],
        "list": [{"name": "a", "value": 1, "tags": None}],
        "whole": ["a"],
    }

    assert [row for row in TABLES["merged"] if merge(STRUCTURE, row["live"], row["config"]) != row["merged"]] == []

    for before, config_order, after in (
        *(("abc", "c", "abc"), ("abc", "d", "abcd"), ("abc", "ca", "bca"), ("abc", "xb", "axbc"), ("abcd", "dxb", "acdxb")),
        *(("abc", "cba", "cba"), ("", "ba", "ba"), ("ab", "yaxb", "yaxb"), ("abxy", "ba", "bxya")),
    ):
        live = {"list": named(*before), "set": list(before)}
        result = merge(STRUCTURE, live, {"list": named(*config_order), "set": list(config_order)})
        assert ["".join(entry["name"] for entry in result["list"]), "".join(result["set"])] == [after, after]


NAMES, LETTERS, NUMBERS = st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 2)
TEXTS = st.dictionaries(NAMES, LETTERS, max_size=3)
ENTRIES = st.dictionaries(
    NAMES,
    st.fixed_dictionaries({}, optional={"value": NUMBERS, "tags": st.lists(LETTERS, unique=True, max_size=2)}),
    max_size=3,
).map(lambda found: [{"name": name, **entry} for name, entry in found.items()])
LEAVES = st.one_of(NUMBERS, LETTERS, st.lists(NUMBERS, max_size=2))
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "number": NUMBERS,
        "text": LETTERS,
        "inner": st.fixed_dictionaries({}, optional={"left": LETTERS, "right": LETTERS}),
        "names": TEXTS,
        "selector": TEXTS,
        "whole": st.lists(LETTERS, max_size=2),
        "set": st.lists(LETTERS, unique=True, max_size=3),
        "list": ENTRIES,
        "ports": ENTRIES,
        "open": st.dictionaries(NAMES, st.one_of(LEAVES, st.dictionaries(NAMES, LEAVES, max_size=2)), max_size=3),
    },
)
Writes = list[tuple[str, str, dict[str, Any]]]
WRITES = st.lists(
    st.tuples(st.sampled_from(("update", "apply")), st.sampled_from(("one", "two", "three")), DOCUMENTS), max_size=6
)
PATHS = st.lists(
    st.lists(st.sampled_from(("f:a", "f:b", 'k:{"n":1}', 'k:{"n":"1"}', 'v:"x"', "v:2", "i:0")), min_size=1, max_size=4).map(
        tuple
    )
)
many = settings(max_examples=60, deadline=None)


def written(writes: Writes) -> World:
    world = World()
    for operation, manager, document in writes:
        write = world.update if operation == "update" else partial(world.apply, force=True)
        write(manager, document)
    return world


def existing(world: World) -> Fields:
    """Every field that the object has, the maps around them included."""
    return minus(compare(STRUCTURE, {}, world.live).written, NOBODYS)


def all_fields(holdings: Holdings) -> Fields:
    """All owned fields."""
    return reduce(union, (holding.fields for holding in holdings.values()), {})


@many
@given(PATHS, PATHS)
def test_field_sets_follow_set_algebra(these: list[tuple[str, ...]], those: list[tuple[str, ...]]) -> None:
    one, other = of_paths(*these), of_paths(*those)
    assert (decoded(one), set(paths(one))) == (one, set(these))
    assert all(fieldset.contains(one, path) is (path in these) for path in (*these, *those))
    assert (set(paths(union(one, other))), set(paths(common(one, other)))) == ({*these, *those}, {*these} & {*those})
    assert (set(paths(minus(one, other))), union(minus(one, other), common(one, other))) == ({*these} - {*those}, one)
    assert fieldset.covers(one, other) == ({*those} <= {*these})
    assert fieldset.intersects(one, other) == bool({*these} & {*those})
    assert str(fieldset.in_order(_backwards(one))) == str(fieldset.in_order(one))


def _backwards(fields: Fields) -> Fields:
    return {element: _backwards(fields[element]) for element in reversed([*fields])}


@many
@given(WRITES)
@example([("apply", "one", {"inner": {"left": "x"}}), ("apply", "one", {"inner": {}})])
@example([("apply", "one", {"inner": {"left": "x"}}), ("apply", "two", {"inner": {}}), ("apply", "one", {})])
def test_what_exists_is_held_and_of_what_is_gone_only_emptied_containers(writes: Writes) -> None:
    world = written(writes)
    held_without = minus(minus(all_fields(world.holdings), existing(world)), fields_of(STRUCTURE, world.live))
    assert [path for path in paths(held_without) if is_value(path)] == []
    assert minus(leaves(STRUCTURE, world.live), all_fields(world.holdings)) == {}
    assert held.read(held.written(world.holdings)) == world.holdings
    assert held.of_entries(held.written(world.holdings)) == world.holdings


def is_value(path: tuple[str, ...]) -> bool:
    """Whether the place is a value by the schema, not a map or list that is divided into fields."""
    here: Structure | None = STRUCTURE
    for element in path:
        here = here.of(element.removeprefix("f:")) if here and element.startswith("f:") else here and here.element
    return here is not None and here.form is FieldForm.LEAF


def leaves(structure: Structure, document: dict[str, Any]) -> Fields:
    """What is written as a value: scalars, and what is owned as a whole."""
    return _ends(minus(fields_of(structure, full(document)), NOBODYS))


def full(value: Any) -> Any:
    """Without empty maps and lists: one that was emptied is nobody's, and goes when somebody lets it go."""
    if isinstance(value, dict):
        kept = {name: full(part) for name, part in value.items()}
        return {name: part for name, part in kept.items() if part not in ({}, [])}
    return [full(part) for part in value] if isinstance(value, list) else value


def _ends(fields: Fields) -> Fields:
    kept = {element: below if not below else _ends(below) for element, below in fieldset.parts_of(fields).items()}
    ends = {element for element, below in fields.items() if fieldset.has_itself(below) and not below}
    return {element: below for element, below in kept.items() if below or element in ends}


@many
@given(WRITES, DOCUMENTS)
def test_applied_document_is_there_and_applying_it_again_changes_nothing(writes: Writes, config: dict[str, Any]) -> None:
    world = written(writes)
    world.apply("applier", config, force=True)
    assert compare(STRUCTURE, merge(STRUCTURE, world.content, config), world.content).written == {}
    assert world.shares.get("applier!", {}) == fields_of(STRUCTURE, config)
    before = world.live, world.holdings
    assert (world.apply("applier", config).changed, (world.live, world.holdings)) == (False, before)


@many
@given(WRITES, DOCUMENTS)
def test_without_force_no_field_of_another_changes(writes: Writes, config: dict[str, Any]) -> None:
    world = written(writes)
    before, held_before = world.live, dict(world.holdings)

    try:
        world.apply("applier", config)
    except ConflictError:
        assert world.live == before
        return

    assert common(compare(STRUCTURE, before, world.live).written, all_fields(held_before)) == {}
    assert {writer: holding for writer, holding in world.holdings.items() if writer in held_before} == held_before


@many
@given(WRITES, DOCUMENTS)
def test_what_others_hold_survives_that_an_applier_leaves(writes: Writes, config: dict[str, Any]) -> None:
    world = written(writes)
    before, values = world.live, leaves(STRUCTURE, world.live)
    world.apply("applier", config, force=True)
    others = {writer: holding for writer, holding in world.holdings.items() if writer.manager != "applier"}

    world.apply("applier", {})

    gone = common(common(compare(STRUCTURE, before, world.live).removed, values), all_fields(others))
    assert [path for path in paths(gone) if not any(path[: len(entry)] == entry for entry in _entries(config))] == []
    assert all(writer.manager != "applier" for writer in world.holdings)


def _entries(config: dict[str, Any]) -> list[tuple[str, ...]]:
    """List entries that the applier held: they go with what others wrote into them."""
    lists = (("list", '"}'), ("ports", '","protocol":"TCP"}'))
    return [("f:" + part, 'k:{"name":"' + each["name"] + suffix) for part, suffix in lists for each in config.get(part, ())]


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
    refused_with = [(cause.reason, cause.message, cause.field) for cause in refusal.value.causes]
    assert refused_with == [("FieldManagerConflict", f"conflict with {holder}", field) for field, holder in holders]


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
    assert (world.apply("one", {"number": 1, "text": "a"}).changed, world.holding("one!").time) == (False, first)
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
    assert (world.content, world.holding("one!").api_version) == ({"number": 1}, "example.com/v2")
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
    document = live(json.dumps({"apiVersion": V1, "number": 1, "text": "a"}), number=1, text="changed", inner={"left": "x"})
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
    assert with_note(live("old", number=2), {"text": "x" * MOST}, MOST)["metadata"]["annotations"] == {"other": "kept"}


MINE = FieldOwnership(NAMESPACE, "ann", "v1", "", "2026-01-01T00:00:00Z")
OF_THE_SERVER = {"uid": "u", "resourceVersion": "5", "creationTimestamp": "2026-01-01T00:00:00Z"}


def manifest(**metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "edge", **metadata}}
