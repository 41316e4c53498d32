"""What holds for every sequence of writes, whoever makes them."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from machinery.errors import ConflictError
from machinery.managedfields import holdings as held
from machinery.managedfields.comparing import compare
from machinery.managedfields.fieldset import EMPTY, FieldSet, decoded, encoded, of_paths
from machinery.managedfields.holdings import all_fields
from machinery.managedfields.merging import merge
from machinery.managedfields.selecting import fields_of
from machinery.managedfields.structure import Structure
from machinery.managedfields.updating import NOBODYS
from tests.fakes.managedfields import STRUCTURE, World

NAMES, LETTERS, NUMBERS = st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 2)
TEXTS = st.dictionaries(NAMES, LETTERS, max_size=3)
ENTRIES = st.dictionaries(
    NAMES,
    st.fixed_dictionaries({}, optional={"value": NUMBERS, "tags": st.lists(LETTERS, unique=True, max_size=2)}),
    max_size=3,
).map(lambda found: [{"name": name, **entry} for name, entry in found.items()])
LEAVES = st.one_of(NUMBERS, LETTERS, st.lists(NUMBERS, max_size=2))
OPEN = st.dictionaries(NAMES, st.one_of(LEAVES, st.dictionaries(NAMES, LEAVES, max_size=2)), max_size=3)
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
        "open": OPEN,
    },
)
WRITES = st.lists(
    st.tuples(st.sampled_from(("update", "apply")), st.sampled_from(("one", "two", "three")), DOCUMENTS), max_size=6
)
PATHS = st.lists(
    st.lists(st.sampled_from(("f:a", "f:b", 'k:{"n":1}', 'k:{"n":"1"}', 'v:"x"', "v:2", "i:0")), min_size=1, max_size=4).map(
        tuple
    )
)
many = settings(max_examples=60, deadline=None)


def written(writes: list[tuple[str, str, dict[str, Any]]]) -> World:
    world = World()
    for operation, manager, document in writes:
        if operation == "update":
            world.update(manager, document)
        else:
            world.apply(manager, document, force=True)
    return world


def existing(world: World) -> FieldSet:
    """Every field that the object has, the maps around them included."""
    return compare(STRUCTURE, {}, world.live).added - NOBODYS


@many
@given(PATHS)
def test_notation_and_set_are_the_same(paths: list[tuple[str, ...]]) -> None:
    fields = of_paths(*paths)

    assert decoded(encoded(fields)) == fields
    assert set(fields.paths()) == set(paths)


@many
@given(PATHS, PATHS)
def test_sets_of_fields_are_sets(these: list[tuple[str, ...]], those: list[tuple[str, ...]]) -> None:
    one, other = of_paths(*these), of_paths(*those)

    assert set((one | other).paths()) == {*these, *those}
    assert set((one & other).paths()) == {*these} & {*those}
    assert set((one - other).paths()) == {*these} - {*those}
    assert (one - other) | (one & other) == one


@many
@given(WRITES)
def test_nobody_holds_what_is_not_there(writes: list[tuple[str, str, dict[str, Any]]]) -> None:
    world = written(writes)

    assert all_fields(world.holdings) - existing(world) - fields_of(STRUCTURE, world.live) == EMPTY


@many
@given(WRITES)
def test_whatever_is_there_has_a_holder(writes: list[tuple[str, str, dict[str, Any]]]) -> None:
    world = written(writes)

    assert leaves(STRUCTURE, world.live) - all_fields(world.holdings) == EMPTY


def leaves(structure: Structure, document: dict[str, Any]) -> FieldSet:
    """What is written as a value: scalars, and what is owned as a whole."""
    return _ends(fields_of(structure, full(document)) - NOBODYS)


def full(value: Any) -> Any:
    """Without empty maps and lists: one that was emptied is nobody's, and goes when somebody lets it go."""
    if isinstance(value, dict):
        kept = {name: full(part) for name, part in value.items()}
        return {name: part for name, part in kept.items() if part not in ({}, [])}
    return [full(part) for part in value] if isinstance(value, list) else value


def _ends(fields: FieldSet) -> FieldSet:
    kept = {element: _ends(below) for element, below in fields.children.items()}
    return FieldSet(fields.member and not fields.children, {element: below for element, below in kept.items() if below})


@many
@given(WRITES, DOCUMENTS)
def test_the_same_apply_again_changes_nothing(writes: list[tuple[str, str, dict[str, Any]]], config: dict[str, Any]) -> None:
    world = written(writes)
    world.apply("applier", config, force=True)
    before = (world.live, world.holdings)

    result = world.apply("applier", config)

    assert not result.changed
    assert (world.live, world.holdings) == before


@many
@given(WRITES, DOCUMENTS)
def test_what_is_applied_is_there(writes: list[tuple[str, str, dict[str, Any]]], config: dict[str, Any]) -> None:
    world = written(writes)

    world.apply("applier", config, force=True)

    assert compare(STRUCTURE, merge(STRUCTURE, world.content, config), world.content).written == EMPTY
    held_now = world.shares.get("applier!", {})
    assert decoded(held_now) == fields_of(STRUCTURE, config)


@many
@given(WRITES, DOCUMENTS)
def test_without_force_no_field_of_another_changes(
    writes: list[tuple[str, str, dict[str, Any]]], config: dict[str, Any]
) -> None:
    world = written(writes)
    before, held_before = world.live, dict(world.holdings)

    try:
        world.apply("applier", config)
    except ConflictError:
        assert world.live == before
        return

    changed = compare(STRUCTURE, before, world.live)
    assert changed.modified & all_fields(held_before) == EMPTY
    assert {writer: holding for writer, holding in world.holdings.items() if writer in held_before} == held_before


@many
@given(WRITES, DOCUMENTS)
def test_what_others_hold_survives_that_an_applier_leaves(
    writes: list[tuple[str, str, dict[str, Any]]], config: dict[str, Any]
) -> None:
    world = written(writes)
    values = leaves(STRUCTURE, world.live)
    before = world.live
    world.apply("applier", config, force=True)
    others = {writer: holding for writer, holding in world.holdings.items() if writer.manager != "applier"}

    world.apply("applier", {})

    gone = compare(STRUCTURE, before, world.live).removed
    assert (gone & values & all_fields(others)).without(_entries(config)) == EMPTY
    assert all(writer.manager != "applier" for writer in world.holdings)


def _entries(config: dict[str, Any]) -> FieldSet:
    """List entries that the applier held: they go with what others wrote into them."""
    return of_paths(
        *(("f:" + part, 'k:{"name":"' + entry["name"] + suffix) for part, suffix in _LISTS for entry in config.get(part, ()))
    )


_LISTS = (("list", '"}'), ("ports", '","protocol":"TCP"}'))


@many
@given(WRITES)
def test_holdings_are_read_as_they_were_written(writes: list[tuple[str, str, dict[str, Any]]]) -> None:
    world = written(writes)

    assert held.read(held.written(world.holdings)) == world.holdings
