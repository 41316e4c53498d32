"""Differences between two states of an object, field by field, with readable paths.

List entries are matched by identifying fields (`type` of a condition, `name` of a claim, `key` and `effect` of a taint) and not
by position. A list without identifying fields is one value. Metadata that only the server maintains is ignored.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]

BOOKKEEPING = frozenset(("metadata.managedFields", "metadata.resourceVersion", "metadata.generation"))
NAMED_BY = (("type",), ("name",), ("key", "effect"), ("key",), ("id",))
"""Possible identifying fields. A list uses the first set that all its entries have, with unique values."""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Difference:
    """One changed field. `before` or `after` None: the field is absent."""

    path: str
    before: Any
    after: Any


def differences(before: Document | None, after: Document | None) -> Iterator[Difference]:
    """Yield differences in the order of the fields. An argument None means no object: each top-level field is a difference."""
    yield from _of_maps("", before or {}, after or {})


def readable(document: Document) -> dict[str, Any]:
    """Return the object without metadata that only the server maintains."""
    hidden = {path.rpartition(".")[2] for path in BOOKKEEPING}
    metadata = {name: value for name, value in document.get("metadata", {}).items() if name not in hidden}
    return {**document, "metadata": metadata}


def _of_maps(path: str, before: Document, after: Document) -> Iterator[Difference]:
    for name in dict.fromkeys((*before, *after)):
        below = f"{path}.{name}".removeprefix(".") if _PLAIN.fullmatch(name) else f'{path}["{name}"]'
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
    for fields in NAMED_BY:
        old, new = _named(before, fields), _named(after, fields)
        if old is not None and new is not None:
            for name in dict.fromkeys((*old, *new)):
                yield from _of_values(f"{path}[{name}]", old.get(name), new.get(name))
            return
    yield Difference(path, list(before), list(after))


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
