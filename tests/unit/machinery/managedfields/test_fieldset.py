"""Sets of fields: their algebra, their notation, and their order."""

import pytest

from machinery.managedfields import elements
from machinery.managedfields.fieldset import DEEPEST, EMPTY, FieldSet, decoded, encoded, of_paths

A, B, C = "f:a", "f:b", "f:c"


def paths(fields: FieldSet) -> set[tuple[str, ...]]:
    return set(fields.paths())


def test_what_goes_out_of_a_set_takes_nothing_below_it_along() -> None:
    assert paths(of_paths((A,), (A, B)) - of_paths((A,))) == {(A, B)}
    assert paths(of_paths((A,), (A, B)) - of_paths((A, B))) == {(A,)}


def test_without_takes_along_what_lies_below() -> None:
    assert paths(of_paths((A,), (A, B), (C, B)).without(of_paths((A,)))) == {(C, B)}


def test_a_set_that_loses_everything_is_false() -> None:
    left = of_paths((A, B, C)) - of_paths((A, B, C))

    assert not left
    assert left == EMPTY
    assert not of_paths((A, B)) & of_paths((A,))


def test_union_and_intersection_are_by_field() -> None:
    one, other = of_paths((A,), (A, B)), of_paths((A, B), (C,))

    assert paths(one | other) == {(A,), (A, B), (C,)}
    assert paths(one & other) == {(A, B)}
    assert (A, B) in one
    assert (C,) not in one


def test_the_notation_tells_a_field_from_what_lies_below_it() -> None:
    both, below = of_paths((A,), (A, B)), of_paths((A, B))

    assert encoded(both) == {A: {".": {}, B: {}}}
    assert encoded(below) == {A: {B: {}}}
    assert (decoded(encoded(both)), decoded(encoded(below))) == (both, below)


def test_fields_come_before_keys_and_values_and_numbers_by_their_size() -> None:
    ports = [elements.key({"port": 443}), elements.key({"port": 80}), elements.value("b"), elements.value("a"), A]

    assert list(encoded(of_paths(*((port,) for port in ports)))) == [A, 'k:{"port":80}', 'k:{"port":443}', 'v:"a"', 'v:"b"']


@pytest.mark.parametrize(
    ("sent", "ours"),
    [
        ('k:{"b":1,"a":"x"}', 'k:{"a":"x","b":1}'),
        ('k:{"port": 80.0}', 'k:{"port":80}'),
        ('v:"\\u003cx\\u003e"', 'v:"<x>"'),
        ("i:07", "i:7"),
        ("f:with:colon", "f:with:colon"),
        ("x:from the future", None),
    ],
)
def test_another_spelling_of_an_element_is_the_same_element(sent: str, ours: str | None) -> None:
    assert elements.canonical(sent) == ours


@pytest.mark.parametrize("notation", [[], {"spec": {}}, {"f": {}}, {"k:[]": {}}, {"v:{": {}}, {"i:x": {}}, {"f:a": 1}])
def test_what_is_no_notation_is_refused(notation: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decoded(notation)


def test_a_set_that_is_too_deep_is_refused() -> None:
    notation: dict[str, object] = {}
    for _ in range(DEEPEST + 1):
        notation = {A: notation}

    with pytest.raises(ValueError, match="nested"):
        decoded(notation)


def test_an_element_that_a_later_version_may_know_is_left_out() -> None:
    assert decoded({"z:new": {}, A: {"z:new": {}}}) == EMPTY
    assert decoded({"z:new": {}, A: {}}) == of_paths((A,))


def test_a_path_is_shown_as_kubernetes_shows_it() -> None:
    path = ("f:status", "f:conditions", 'k:{"type":"Ready"}', "f:status")

    assert elements.shown(path) == '.status.conditions[type="Ready"].status'
    assert elements.shown(("f:metadata", "f:finalizers", 'v:"a/b"')) == '.metadata.finalizers[="a/b"]'
    assert elements.shown(("f:ports", 'k:{"port":80,"protocol":"TCP"}', "i:3")) == '.ports[port=80,protocol="TCP"][3]'
