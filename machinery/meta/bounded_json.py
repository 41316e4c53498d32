"""JSON from clients, bounded in values and depth, so that decoding takes milliseconds for any input."""

import re
from typing import Any

import msgspec

MOST_VALUES = 50_000
"""Largest total number of objects, lists and their entries."""
DEEPEST = 100

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
"""Matches half of a surrogate pair in a text without escaped backslashes.

If such a half is at the end of a string, the decoder wrongly reports that the text has ended."""


class JsonError(ValueError):
    """The text is not JSON, or exceeds a bound. The message does not contain the text, because it may contain a secret."""


def decode(text: bytes) -> Any:
    """Decode a JSON value. Raises JsonError if it is malformed or exceeds a bound."""
    check_values(text)
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise JsonError(_why(text, error)) from None
    check_depth(value)
    return value


def check_values(text: bytes, most: int = MOST_VALUES) -> None:
    """Raises JsonError for a text with more than `most` values. It estimates the number from separators and quotes."""
    if _begun(text) < most:
        return
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * most or _begun(b"".join(plain.split(b'"')[::2])) >= most:
        raise JsonError(f"it has more than {most} values")


def count_values(text: bytes) -> int:
    """Return an upper bound of the number of values in valid JSON. The excess is the number of empty lists and objects."""
    return _begun(_STRING.sub(b"", text)) + 1


def check_depth(value: Any) -> None:
    """Raises JsonError for a value nested deeper than DEEPEST."""
    level = [value]
    for _ in range(DEEPEST + 1):
        around = [each for each in level if isinstance(each, dict | list)]
        if not around:
            return
        level = [inner for each in around for inner in (each.values() if isinstance(each, dict) else each)]
    raise JsonError(f"it is nested deeper than {DEEPEST}")


def _begun(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _why(text: bytes, error: Exception) -> str:
    if not text:
        return "unexpected end of JSON input"
    if isinstance(error, UnicodeDecodeError) or "UTF-8" in str(error):  # msgspec before 0.23; since 0.23
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return f"it is nested deeper than {DEEPEST}"
    if _HALF_PAIR.search(text.replace(rb"\\", b"")):
        return r"a \u escape is half of a surrogate pair"
    return str(error)
