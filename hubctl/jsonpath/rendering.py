"""Prints results as kubectl does, including Go's format of numbers and JSON."""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from hubctl.jsonpath.evaluation import results
from hubctl.jsonpath.tree import Template

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
