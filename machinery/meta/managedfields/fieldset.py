"""A set of fields of a document as a tree of path elements, and its notation FieldsV1 in `metadata.managedFields`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from machinery.meta.managedfields.elements import canonical, order

NOTHING: Mapping[str, "FieldSet"] = MappingProxyType({})
SELF = "."
DEEPEST = 100
"""Deepest set that a client may send."""


@dataclass(frozen=True, slots=True)
class FieldSet:
    """Fields at and below one place: `member` is whether the place itself is in the set.

    No child is an empty set. A field can be in the set without the fields below it, and the other way round.
    """

    member: bool = False
    children: Mapping[str, "FieldSet"] = field(default_factory=lambda: NOTHING)

    def __bool__(self) -> bool:
        return self.member or bool(self.children)

    def __or__(self, other: "FieldSet") -> "FieldSet":
        """Union."""
        if not other.children and (self.member or not other.member):
            return self
        if not self.children and (other.member or not self.member):
            return other
        children = dict(self.children)
        for element, theirs in other.children.items():
            ours = children.get(element)
            children[element] = theirs if ours is None else ours | theirs
        return FieldSet(self.member or other.member, children)

    def __and__(self, other: "FieldSet") -> "FieldSet":
        """Intersection."""
        children = {}
        for element, ours in self.children.items():
            theirs = other.children.get(element)
            if theirs is not None and (shared := ours & theirs):
                children[element] = shared
        return FieldSet(self.member and other.member, children)

    def __sub__(self, other: "FieldSet") -> "FieldSet":
        """Difference. Removing a field does not remove the fields below it."""
        if not other:
            return self
        children = {}
        for element, ours in self.children.items():
            theirs = other.children.get(element)
            if left := ours if theirs is None else ours - theirs:
                children[element] = left
        return FieldSet(self.member and not other.member, children)

    def without(self, other: "FieldSet") -> "FieldSet":
        """Difference that also removes all fields below the fields of `other`."""
        children = {}
        for element, ours in self.children.items():
            theirs = other.children.get(element, EMPTY)
            if not theirs.member and (left := ours.without(theirs)):
                children[element] = left
        return FieldSet(self.member and not other.member, children)

    def __contains__(self, path: tuple[str, ...]) -> bool:
        here: FieldSet | None = self
        for element in path:
            here = here.children.get(element) if here is not None else None
        return here is not None and here.member

    def paths(self) -> Iterator[tuple[str, ...]]:
        """All fields in Kubernetes' order: at each place the members first, then the fields below."""
        ordered = sorted(self.children.items(), key=lambda item: order(item[0]))
        yield from ((element,) for element, child in ordered if child.member)
        for element, child in ordered:
            yield from ((element, *path) for path in child.paths())


EMPTY = FieldSet()
LEAF = FieldSet(member=True)


def of_paths(*paths: tuple[str, ...]) -> FieldSet:
    result = EMPTY
    for path in paths:
        branch = LEAF
        for element in reversed(path):
            branch = FieldSet(children={element: branch})
        result = result | branch
    return result


def encoded(fields: FieldSet) -> dict[str, Any]:
    """Encode as FieldsV1, in a deterministic order."""
    notation: dict[str, Any] = {}
    for element, child in sorted(fields.children.items(), key=lambda item: order(item[0])):
        below = encoded(child)
        notation[element] = {SELF: {}, **below} if child.member and below else below
    return notation


def decoded(notation: Any) -> FieldSet:
    """Decode FieldsV1. Unknown kinds of elements are ignored. Raises ValueError."""
    return _decoded(notation, DEEPEST)


def _decoded(notation: Any, depth: int) -> FieldSet:
    if not isinstance(notation, dict) or not depth:
        msg = "fields are nested objects"
        raise ValueError(msg)
    children: dict[str, FieldSet] = {}
    for text, below in notation.items():
        element = None if text == SELF else canonical(text)
        if element is None:
            continue
        child = LEAF if below == {} else _decoded(below, depth - 1)
        if child:
            children[element] = children[element] | child if element in children else child
    return FieldSet(SELF in notation, children)
