"""The steps of a JSONPath as functions. Renders templates like kubectl, with numbers and JSON in Go's format."""

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hubctl.errors import CommandError

Step = Callable[[list[Any]], Iterable[Any]]
"""Returns the values after the step, given the values before it. Raises CommandError."""
Path = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """The part between `{range PATH}` and `{end}`. It is repeated for each value of the path."""

    path: Path
    body: "Template"


Template = tuple[Path | Range, ...]


def find(path: Path, document: Any) -> list[Any]:
    """Return the values at a path. Raises CommandError."""
    values = [document]
    for step in path:
        values = list(step(values))
    return values


def literal(value: str | float) -> Step:
    """Return the step of a literal: a text, a number or a truth value."""
    return lambda _values: [value]


def field(name: str) -> Step:
    """Return the step `.name`: the value of a key."""
    return lambda values: [value[name] for value in values if isinstance(value, Mapping) and name in value]


def key_path(name: str, path: Path) -> Step:
    """Return the step `['a.b']`: the value of the key `a.b`; if there is no such key, the value at the path `.a.b`."""

    def step(values: list[Any]) -> Iterator[Any]:
        for value in values:
            yield from [value[name]] if isinstance(value, Mapping) and name in value else find(path, value)

    return step


def wildcard(values: list[Any]) -> Iterator[Any]:
    """Yield all values of each map or list: the step `.*`."""
    for value in values:
        if isinstance(value, Mapping | list):
            yield from value.values() if isinstance(value, Mapping) else value


def recursive_descent(values: list[Any]) -> Iterator[Any]:
    """Yield all non-empty maps and lists of `values`, at any depth, each before its contents: the step `..`."""
    for value in values:
        inner = list(wildcard([value]))
        if inner:
            yield value
            yield from recursive_descent(inner)


def union(paths: tuple[Path, ...]) -> Step:
    """Return the step `['a','b']`: the results of several paths, one after the other."""
    return lambda values: [found for path in paths for value in values for found in find(path, value)]


def slice_of(start: int | None = None, stop: int | None = None, step: int | None = None, *, single: bool = False) -> Step:
    """Return the step `[start:stop:step]`, which selects entries of a list. `single`: the step `[start]`."""
    parts = ["" if part is None else str(part) for part in (start, stop, step)]
    text = parts[0] if single else ":".join(parts if parts[2] else parts[:2])

    def entries(values: list[Any]) -> Iterator[Any]:
        for value in values:
            if value is None:
                continue
            length = len(_list(value))
            first = (start or 0) + (length if (start or 0) < 0 else 0)
            last = first + 1 if single else length if stop is None else stop + (length if stop < 0 else 0)
            if first == last:
                continue
            if not 0 <= first < last <= length:
                raise CommandError(f"jsonpath: there is no [{text}] in a list of {length}")
            if step is not None and step <= 0:
                raise CommandError(f"jsonpath: the step of [{text}] must be positive")
            yield from value[first : last : step or 1]

    return entries


COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EQUALITIES = ("==", "!=")


def filter_of(left: Path, sign: str = "", right: Path = ()) -> Step:
    """Return the step `[?(@.a == "b")]`: the entries of a list that match; `sign` "": entries that have the path `left`."""

    def matches(entry: Any) -> bool:
        lefts = find(left, entry)
        if not sign:
            return bool(lefts)
        rights = find(right, entry)
        if len(lefts) > 1 or len(rights) > 1:
            raise CommandError("jsonpath: a filter compares single values, and one side has several")
        return bool(lefts and rights) and _compare(lefts[0], sign, rights[0])

    return lambda values: (entry for value in values for entry in _list(value) if matches(entry))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise CommandError(f"jsonpath: brackets need a list, and this is {_named(value)}")
    return value


def _compare(left: Any, sign: str, right: Any) -> bool:
    kinds = [next((kind for kind in (bool, int | float, str) if isinstance(side, kind)), None) for side in (left, right)]
    same = kinds[0] == kinds[1] and (kinds[0] is not None or _named(left) == _named(right))
    if not same or (kinds[0] is bool and sign not in EQUALITIES):
        raise CommandError(f"jsonpath: a filter cannot compare {_named(left)} {sign} {_named(right)}")
    return COMPARE[sign](left, right)


def _named(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return "a map" if isinstance(value, Mapping) else "a list"
    return "null" if value is None else repr(value)


ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
PLAIN_BELOW, PLAIN_FROM = 1e21, 1e-4
"""Non-integers between these numbers are written without an exponent."""


def rendered(template: Template, document: Any) -> str:
    """Return the template with its results. Spaces separate several values of one expression. Raises CommandError."""
    return "".join(" ".join(map(text_of, found)) for found in _results(template, document))


def as_json(template: Template, document: Any) -> str:
    """Return the results of each expression as a JSON array. Raises CommandError."""
    return "".join(f"{_json(found, indent=4)}\n" for found in _results(template, document))


def _results(template: Template, document: Any) -> Iterator[list[Any]]:
    for part in template:
        if isinstance(part, Range):
            for value in find(part.path, document):
                yield from _results(part.body, value)
        else:
            yield find(part, document)


def text_of(value: Any) -> str:
    """Return a value as text: text unchanged, maps and lists as JSON on one line."""
    if isinstance(value, str):
        return value
    return _number(value) if isinstance(value, float) else _json(value)


def _json(value: Any, indent: int | None = None) -> str:
    separators = (",", ": " if indent else ":")
    text = json.dumps(_with_integers(value), sort_keys=True, ensure_ascii=False, indent=indent, separators=separators)
    return "".join(ESCAPED.get(character, character) for character in text)


def _with_integers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_integers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_integers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < PLAIN_BELOW else value


def _number(value: float) -> str:
    plain = value == 0 or PLAIN_FROM <= abs(value) < PLAIN_BELOW
    mantissa, _, exponent = f"{Decimal(repr(value)):{'f' if plain else 'e'}}".partition("e")
    digits = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return digits if plain else f"{digits}e{'-' if int(exponent) < 0 else '+'}{abs(int(exponent)):02d}"
