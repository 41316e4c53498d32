"""Evaluates a template on a document. A missing value yields nothing; an operation on the wrong type is an error."""

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hubctl.errors import CommandError
from hubctl.jsonpath.tree import (
    Descent,
    FieldStep,
    Filter,
    KeyStep,
    LiteralStep,
    Path,
    Range,
    Slice,
    Step,
    Template,
    Union,
    Wildcard,
)

COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EQUALITIES = ("==", "!=")


def results(template: Template, document: Any) -> Iterator[list[Any]]:
    """The results of each expression in the order of printing. Raises CommandError."""
    for part in template:
        if isinstance(part, Range):
            for value in find(part.path, document):
                yield from results(part.body, value)
        else:
            yield find(part, document)


def find(path: Path, document: Any) -> list[Any]:
    """The values at a path. Raises CommandError."""
    values = [document]
    for step in path:
        values = list(_stepped(step, values))
    return values


def _stepped(step: Step, values: list[Any]) -> Iterator[Any]:
    match step:
        case LiteralStep(value):
            yield value
        case Union(paths):
            for path in paths:
                for value in values:
                    yield from find(path, value)
        case _:
            for value in values:
                yield from _within(step, value)


def _within(step: Step, value: Any) -> Iterator[Any]:
    match step:
        case FieldStep(name):
            if isinstance(value, Mapping) and name in value:
                yield value[name]
        case KeyStep(name, path):
            yield from [value[name]] if isinstance(value, Mapping) and name in value else find(path, value)
        case Wildcard():
            yield from _held(value)
        case Descent():
            yield from _descended(value)
        case Slice():
            yield from _sliced(step, value)
        case Filter():
            yield from _filtered(step, value)


def _held(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []


def _descended(value: Any) -> Iterator[Any]:
    held = _held(value)
    if held:
        yield value
    for inner in held:
        yield from _descended(inner)


def _sliced(step: Slice, value: Any) -> list[Any]:
    if value is None:
        return []
    entries = _list(value)
    start = _from_end(step.start or 0, len(entries))
    stop = start + 1 if step.single else _from_end(len(entries) if step.stop is None else step.stop, len(entries))
    if start == stop:
        return []
    if not 0 <= start < len(entries) or not start < stop <= len(entries):
        raise CommandError(f"jsonpath: there is no [{_written(step)}] in a list of {len(entries)}")
    if step.step is not None and step.step <= 0:
        raise CommandError(f"jsonpath: the step of [{_written(step)}] is not above 0")
    return entries[start : stop : step.step or 1]


def _from_end(index: int, length: int) -> int:
    return index + length if index < 0 else index


def _written(step: Slice) -> str:
    told = ["" if part is None else str(part) for part in (step.start, step.stop, step.step)]
    return told[0] if step.single else ":".join(told if told[2] else told[:2])


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise CommandError(f"jsonpath: brackets look into lists, and this is {_named(value)}")
    return value


def _filtered(step: Filter, value: Any) -> Iterator[Any]:
    for entry in _list(value):
        left = find(step.left, entry)
        if not step.operator:
            if left:
                yield entry
            continue
        right = find(step.right, entry)
        if len(left) > 1 or len(right) > 1:
            raise CommandError("jsonpath: a filter compares one value with one, and a side of it has several")
        if left and right and _passes(step.operator, left[0], right[0]):
            yield entry


def _passes(sign: str, left: Any, right: Any) -> bool:
    if _sort(left) != _sort(right) or (isinstance(left, bool) and sign not in EQUALITIES):
        raise CommandError(f"jsonpath: a filter cannot compare {_named(left)} {sign} {_named(right)}")
    return COMPARE[sign](left, right)


def _sort(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else f"none: {_named(value)}"


def _named(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, list):
        return "a list"
    return "null" if value is None else repr(value)
