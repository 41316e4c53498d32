"""Validation ratcheting: a write is not rejected for violations that the stored object already has."""

from collections.abc import Callable, Iterable
from typing import Any

from machinery.apiserver.storage import Document
from machinery.errors import Cause

WRONG_TYPE = "FieldValueTypeInvalid"
LONGEST_PATH = 1024
"""Longest field path that is resolved: each prefix is tried because names may contain dots."""
_NOWHERE = object()


def added(
    causes: list[Cause], new: Document, old: Callable[[], Document | None], broken: Callable[[Document], Iterable[Cause]]
) -> list[Cause]:
    """Return the causes that `broken` does not report for the stored object. `old` is only called when there are causes.

    A cause about a string or number counts as old only if the value is unchanged: a worse value may have the same cause.
    A wrong type is always reported, since no other rule can check an object of a wrong type.
    """
    before = old() if causes else None
    if before is None:
        return causes
    stand = set(broken(before))
    return [cause for cause in causes if cause not in stand or _is_told_again(cause, new, before)]


def _is_told_again(cause: Cause, new: Document, old: Document) -> bool:
    return cause.reason == WRONG_TYPE or _is_worse(cause.field, new, old)


def _is_worse(field: str, new: Document, old: Document) -> bool:
    """Whether the field has a different string or number now. Causes of lists and maps refer to their parts."""
    if len(field) > LONGEST_PATH:
        return False
    now, before = _at(new, field), _at(old, field)
    return not isinstance(now, dict | list) and now is not _NOWHERE and now != before


def _at(value: Any, path: str) -> Any:
    """Value at `a.b[0].c`, where names may contain dots and brackets; `_NOWHERE`: no such path."""
    if not path:
        return value
    if isinstance(value, list):
        index, closed, rest = path.removeprefix("[").partition("]")
        is_there = path.startswith("[") and closed and index.isdecimal() and int(index) < len(value)
        return _at(value[int(index)], rest.removeprefix(".")) if is_there else _NOWHERE
    if not isinstance(value, dict):
        return _NOWHERE
    for end in range(len(path), 0, -1):
        if path[end:][:1] in ("", ".", "[") and path[:end] in value:
            found = _at(value[path[:end]], path[end:].removeprefix("."))
            if found is not _NOWHERE:
                return found
    return _NOWHERE
