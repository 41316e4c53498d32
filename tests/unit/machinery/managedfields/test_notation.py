"""The notation as a set says what the set says, and the cheap comparison what the full one says."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from machinery.managedfields.comparing import compare, noted
from machinery.managedfields.fieldset import decoded, encoded, of_paths
from machinery.managedfields.notation import covers, in_order, minus, touches, union
from tests.fakes.managedfields import STRUCTURE
from tests.unit.machinery.managedfields.test_ownership_properties import PATHS

many = settings(max_examples=150, deadline=None)
SCALARS = st.one_of(st.none(), st.integers(0, 1), st.sampled_from(("", "x", "y")), st.booleans())
ENTRIES = st.fixed_dictionaries({}, optional={"name": st.one_of(st.none(), st.sampled_from("ab")), "value": SCALARS})
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(st.one_of(inner, ENTRIES), max_size=3),
        st.lists(ENTRIES, max_size=3),
        st.dictionaries(st.sampled_from(("a", "left", "name")), inner, max_size=2),
    ),
    max_leaves=6,
)
PLACES = ("number", "text", "inner", "names", "selector", "whole", "set", "list", "ports", "open")
ANYTHING = st.dictionaries(st.sampled_from(PLACES), VALUES, max_size=4)


@many
@given(PATHS, PATHS)
def test_sets_in_notation_are_the_same_sets(these: list[tuple[str, ...]], those: list[tuple[str, ...]]) -> None:
    one, other = of_paths(*these), of_paths(*those)

    assert minus(encoded(one), encoded(other)) == encoded(one - other)
    assert in_order(union(encoded(one), encoded(other))) == encoded(one | other)
    assert covers(encoded(one), encoded(other)) == (not other - one)
    assert touches(encoded(one), encoded(other)) == bool(one & other)


@many
@given(PATHS)
def test_order_is_the_notations_own(paths: list[tuple[str, ...]]) -> None:
    fields = encoded(of_paths(*paths))
    backwards = _backwards(fields)

    assert list(in_order(backwards)) == list(fields)
    assert str(in_order(backwards)) == str(fields)


def _backwards(notation: dict[str, Any]) -> dict[str, Any]:
    return {element: _backwards(notation[element]) for element in reversed(notation)}


@settings(max_examples=600, deadline=None)
@given(ANYTHING, ANYTHING)
def test_what_was_noted_is_what_was_compared(old: dict[str, Any], new: dict[str, Any]) -> None:
    found, full = noted(STRUCTURE, old, new), compare(STRUCTURE, old, new)

    assert decoded(found.removed) == full.removed
    assert decoded(found.written) == full.written
    assert in_order(found.written) == encoded(full.written)
