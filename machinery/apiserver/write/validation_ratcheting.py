"""What a write breaks, apart from what was broken before it: who changes one thing of an object is not refused for another."""

from collections.abc import Callable, Iterable
from typing import Any

from machinery.apiserver.storage import Document
from machinery.errors import Cause

WRONG_TYPE = "FieldValueTypeInvalid"
LONGEST_PATH = 1024
"""A path is looked for by each of its parts, which may hold dots themselves."""
_NOWHERE = object()


def added(
    causes: list[Cause], new: Document, old: Callable[[], Document | None], broken: Callable[[Document], Iterable[Cause]]
) -> list[Cause]:
    """Those causes that `broken` does not tell of the stored object as well, which is looked at where it matters alone.

    A text or a number counts as broken before only where it stays what it was: a worse one may have the same cause. A wrong
    type is always told, since no rule can be asked about an object that it cannot read.
    """
    before = old() if causes else None
    if before is None:
        return causes
    stand = set(broken(before))
    return [cause for cause in causes if cause not in stand or _is_told_again(cause, new, before)]


def _is_told_again(cause: Cause, new: Document, old: Document) -> bool:
    return cause.reason == WRONG_TYPE or _is_worse(cause.field, new, old)


def _is_worse(field: str, new: Document, old: Document) -> bool:
    """Whether there is another text or number now; of lists and maps a cause is about a part."""
    if len(field) > LONGEST_PATH:
        return False
    now, before = _at(new, field), _at(old, field)
    return not isinstance(now, dict | list) and now is not _NOWHERE and now != before


def _at(value: Any, path: str) -> Any:
    """What stands at `a.b[0].c`, where names may hold dots and brackets; `_NOWHERE`: nothing."""
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
