"""Sets of fields of a document, in the notation FieldsV1 of `metadata.managedFields`, and their path elements.

Path elements are `f:spec`, `k:{"type":"Ready"}`, `v:"a"` and `i:0`, here in canonical form. A set maps elements to places. A
place is itself a set: it contains the fields below it. A place is a member if it is empty or has the key ".". Other places only
lead to members below them. The root is never a member, so an empty set is an empty map. No operation changes its arguments.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

FIELD, KEY, VALUE, INDEX = "f:", "k:", "v:", "i:"
_RANKS = {FIELD: 0, KEY: 1, VALUE: 2, INDEX: 3}


def field(name: str) -> str:
    return FIELD + name


def key(entry: Mapping[str, Any]) -> str:
    """Return the path element for an entry of a list map, by its key fields."""
    if len(entry) == 1:
        ((name, content),) = entry.items()
        if isinstance(content, str):
            return text_key(name, content)
    return KEY + _dumped({name: _plain(entry[name]) for name in sorted(entry)})


@lru_cache(maxsize=4096)
def text_key(name: str, content: str) -> str:
    """Like `key`, for an entry with a single key field whose value is a text."""
    return KEY + _dumped({name: content})


def value(scalar: Any) -> str:
    """Return the path element for an entry of a list of the type `set`."""
    return VALUE + _dumped(_plain(scalar))


def canonical(text: str) -> str | None:
    """Return the element in canonical form; None if its kind is unknown, for example of a later version. Raises ValueError."""
    kind, rest = text[:2], text[2:]
    if kind == FIELD:
        return text
    if len(text) < len(FIELD) or kind[1] != ":":
        msg = f"not a path element: {text[:80]}"
        raise ValueError(msg)
    if kind == KEY:
        fields = json.loads(rest)
        if not isinstance(fields, dict):
            msg = f"a key is an object: {text[:80]}"
            raise ValueError(msg)
        return key(fields)
    if kind == VALUE:
        return value(json.loads(rest))
    return f"{INDEX}{int(rest)}" if kind == INDEX else None


@lru_cache(maxsize=4096)
def order(element: str) -> tuple[Any, ...]:
    """Return the sort key of an element: fields come first, then keys, values and indexes, each ordered by content."""
    kind, rest = element[:2], element[2:]
    if kind == FIELD:
        return (0, rest)
    if kind == KEY:
        fields = json.loads(rest)
        return (1, tuple((name, _value_order(fields[name])) for name in sorted(fields)))
    return (_RANKS[kind], _value_order(json.loads(rest)))


def shown(path: Sequence[str]) -> str:
    """Return a path for messages: `.status.conditions[type="Ready"].status`."""
    return "".join(_shown(element) for element in path)


def _shown(element: str) -> str:
    kind, rest = element[:2], element[2:]
    if kind == FIELD:
        return f".{rest}"
    if kind == KEY:
        fields = json.loads(rest)
        return "[" + ",".join(f"{name}={_dumped(fields[name])}" for name in sorted(fields)) + "]"
    return f"[={rest}]" if kind == VALUE else f"[{rest}]"


def _plain(scalar: Any) -> Any:
    """Convert integral floats to int: 80.0 is 80."""
    return int(scalar) if isinstance(scalar, float) and scalar.is_integer() else scalar


def _dumped(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _value_order(scalar: Any) -> tuple[int, Any]:
    if isinstance(scalar, bool):
        return (2, scalar)
    if isinstance(scalar, int | float):
        return (0, scalar)
    return (1, scalar) if isinstance(scalar, str) else (3, _dumped(scalar))


Fields = Mapping[str, Any]
SELF = "."
DEEPEST = 100
"""Largest depth of a set that a client may send."""


def has_itself(place: Fields) -> bool:
    """Whether the place itself is a member."""
    return not place or SELF in place


def parts_of(place: Fields) -> dict[str, Any]:
    """Return the members below a place, as a set."""
    return {element: below for element, below in place.items() if element != SELF}


def place_of(parts: Mapping[str, Fields], *, member: bool) -> Fields | None:
    """Return a place with these parts; None if neither the place nor a part is a member."""
    if not member:
        return parts or None
    return {SELF: {}, **parts} if parts else {}


def of_paths(*paths: tuple[str, ...]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for path in paths:
        branch: dict[str, Any] = {}
        for element in reversed(path):
            branch = {element: branch}
        result = union(result, branch)
    return result


def paths(fields: Fields) -> Iterator[tuple[str, ...]]:
    """Yield the path of each field in Kubernetes' order: at each place first the members, then the fields below them."""
    ordered = sorted(parts_of(fields).items(), key=lambda item: order(item[0]))
    yield from ((element,) for element, below in ordered if has_itself(below))
    for element, below in ordered:
        yield from ((element, *path) for path in paths(below))


def contains(fields: Fields, path: tuple[str, ...]) -> bool:
    here: Fields | None = fields
    for element in path:
        here = here.get(element) if here is not None else None
    return here is not None and has_itself(here)


def covers(one: Fields, other: Fields) -> bool:
    """Whether `one` contains all fields of `other`."""
    for element, below in other.items():
        if element == SELF:
            continue
        there = one.get(element)
        if there is None or (has_itself(below) and not has_itself(there)) or not covers(there, below):
            return False
    return True


def intersects(one: Fields, other: Fields) -> bool:
    """Whether two sets share a field."""
    for element, below in other.items():
        there = None if element == SELF else one.get(element)
        if there is not None and ((has_itself(below) and has_itself(there)) or intersects(there, below)):
            return True
    return False


def minus(one: Fields, other: Fields) -> dict[str, Any]:
    """Return the fields of `one` that are not in `other`. The removal of a field does not remove fields below it."""
    left: dict[str, Any] = {}
    for element, here in one.items():
        there = other.get(element)
        if element == SELF or there is None:
            left[element] = here
            continue
        below = minus(here, there)
        if has_itself(here) and not has_itself(there):
            left[element] = below if below.keys() - {SELF} else {}
            continue
        below.pop(SELF, None)
        if below:
            left[element] = below
    return left


def common(one: Fields, other: Fields) -> dict[str, Any]:
    """Return the fields that both sets contain."""
    shared: dict[str, Any] = {}
    for element, here in parts_of(one).items():
        there = other.get(element)
        if there is not None:
            place = place_of(common(here, there), member=has_itself(here) and has_itself(there))
            if place is not None:
                shared[element] = place
    return shared


def union(one: Fields, other: Fields) -> dict[str, Any]:
    """Return the fields that at least one of the sets contains, unordered."""
    both = dict(one)
    for element, below in other.items():
        there = both.get(element)
        both[element] = below if there is None or element == SELF else joined(there, below)
    return both


def joined(one: Fields, other: Fields) -> dict[str, Any]:
    """Return the union of two sets below one place. It contains the place itself if one of the two does."""
    both = union(one, other)
    if both and SELF not in both and (has_itself(one) or has_itself(other)):
        both[SELF] = {}
    return both


def in_order(fields: Fields) -> dict[str, Any]:
    """Return the set in Kubernetes' order, in which it is stored."""
    names = sorted(fields, key=lambda element: () if element == SELF else order(element)) if len(fields) > 1 else fields
    return {element: in_order(fields[element]) if fields[element] else {} for element in names}


def decoded(sent: Any) -> dict[str, Any]:
    """Return a client's set in canonical form. Elements of unknown kinds are ignored. Raises ValueError."""
    return parts_of(_decoded(sent, DEEPEST))


def _decoded(sent: Any, depth: int) -> dict[str, Any]:
    if not isinstance(sent, dict) or not depth:
        msg = "fields are nested objects"
        raise ValueError(msg)
    fields: dict[str, Any] = {}
    for text, below in sent.items():
        element = None if text == SELF else canonical(text)
        if element is None:
            continue
        place = place_of(parts_of(found := _decoded(below, depth - 1)), member=not below or SELF in found)
        if place is not None:
            fields[element] = joined(fields[element], place) if element in fields else place
    return {**fields, **({SELF: {}} if SELF in sent else {})}
