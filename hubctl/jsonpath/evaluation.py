"""Evaluates templates on a document and prints the results as kubectl does, with Go's format of numbers and JSON.

A missing value yields nothing; an operation on the wrong type is an error.
"""

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from hubctl.errors import CommandError
from hubctl.jsonpath.parsing import (
    FieldStep,
    Filter,
    KeyStep,
    LiteralStep,
    Path,
    Range,
    RecursiveDescent,
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
        case RecursiveDescent():
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
    parts = ["" if part is None else str(part) for part in (step.start, step.stop, step.step)]
    return parts[0] if step.single else ":".join(parts if parts[2] else parts[:2])


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


ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
PLAIN_BELOW, PLAIN_FROM = 1e21, 1e-4
"""Non-integers between these are written without an exponent."""


def rendered(template: Template, document: Any) -> str:
    """The template with its results; several values of one expression are separated by spaces. Raises CommandError."""
    return "".join(" ".join(map(text_of, found)) for found in results(template, document))


def as_json(template: Template, document: Any) -> str:
    """The results of each expression as a JSON array. Raises CommandError."""
    return "".join(f"{_json(found, indent=4)}\n" for found in results(template, document))


def text_of(value: Any) -> str:
    """Text unchanged; maps and lists as JSON on one line."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return _number(value)
    return _json(value)


def _json(value: Any, indent: int | None = None) -> str:
    separators = (",", ": " if indent else ":")
    text = json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, indent=indent, separators=separators)
    return "".join(ESCAPED.get(character, character) for character in text)


def _plain(value: Any) -> Any:
    """Convert floats with integer values to integers."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < PLAIN_BELOW else value


def _number(value: float) -> str:
    shortest = Decimal(repr(value))
    if value == 0 or PLAIN_FROM <= abs(value) < PLAIN_BELOW:
        text = f"{shortest:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = f"{shortest:e}".partition("e")
    digits = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{digits}e{'-' if int(exponent) < 0 else '+'}{abs(int(exponent)):02d}"
