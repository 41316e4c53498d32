"""What differs between two states of one object, field by field, in paths that people can read.

An entry of a list is known by what names it (`type` of a condition, `name` of a claim, `key` and `effect` of a taint), not by
its place; other lists are one value. What is the server's own bookkeeping does not count.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]

BOOKKEEPING = frozenset(("metadata.managedFields", "metadata.resourceVersion", "metadata.generation"))
NAMED_BY = (("type",), ("name",), ("key", "effect"), ("key",), ("id",))
"""By which fields the entries of a list are known: the first that all of them have, and no two the same."""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Difference:
    """One field. `before`, `after` None: it was, or is, not there."""

    path: str
    before: Any
    after: Any


def differences(before: Document | None, after: Document | None) -> Iterator[Difference]:
    """In the order of the fields. None: there was, or is, no object: every part at the top is one difference."""
    yield from _of_maps("", before or {}, after or {})


def readable(document: Document) -> dict[str, Any]:
    """The object without bookkeeping."""
    hidden = {path.rpartition(".")[2] for path in BOOKKEEPING}
    metadata = {name: value for name, value in document.get("metadata", {}).items() if name not in hidden}
    return {**document, "metadata": metadata}


def _of_maps(path: str, before: Document, after: Document) -> Iterator[Difference]:
    for name in dict.fromkeys((*before, *after)):
        below = _below(path, name)
        if below not in BOOKKEEPING:
            yield from _of_values(below, before.get(name), after.get(name))


def _of_values(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _of_maps(path, before, after)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(path, before, after)
    else:
        yield Difference(path, before, after)


def _of_lists(path: str, before: Sequence[Any], after: Sequence[Any]) -> Iterator[Difference]:
    named = _entries(before, after)
    if named is None:
        yield Difference(path, list(before), list(after))
        return
    old, new = named
    for name in dict.fromkeys((*old, *new)):
        yield from _of_values(f"{path}[{name}]", old.get(name), new.get(name))


def _entries(*lists: Sequence[Any]) -> tuple[dict[str, Any], ...] | None:
    """The entries of each list by their names; None: they have none."""
    for fields in NAMED_BY:
        found = [_named(entries, fields) for entries in lists]
        if all(each is not None for each in found):
            return tuple(each for each in found if each is not None)
    return None


def _named(entries: Sequence[Any], fields: Sequence[str]) -> dict[str, Any] | None:
    named: dict[str, Any] = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or not all(isinstance(entry.get(field), str) for field in fields):
            return None
        name = ":".join(entry[field] for field in fields)
        if name in named:
            return None
        named[name] = entry
    return named


def _below(path: str, name: str) -> str:
    if not _PLAIN.fullmatch(name):
        return f'{path}["{name}"]'
    return f"{path}.{name}" if path else name
