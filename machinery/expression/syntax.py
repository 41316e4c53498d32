"""Tokens of the text of conditions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from machinery.errors import InvalidError

LONGEST = 4096


class ExpressionError(InvalidError):
    """A text is not a valid condition. `column`: the position, from 1; the message states what is valid there."""

    def __init__(self, column: int, what: str) -> None:
        super().__init__(f"column {column}: {what}")
        self.column = column
        self.what = what


class Sort(StrEnum):
    NAME = "name"
    NUMERAL = "numeral"
    TEXT = "text"
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """A token. For a quoted text, `text` has no quotes and no escapes."""

    sort: Sort
    text: str
    column: int

    def is_sign(self, *signs: str) -> bool:
        return self.sort is Sort.SIGN and self.text in signs

    @property
    def shown(self) -> str:
        """The token as error messages show it."""
        return "the end" if self.sort is Sort.END else f'"{self.text[:40]}"'


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<numeral>(?:-?\d[0-9A-Za-z]*|v\d+(?=\.))(?:\.[0-9A-Za-z]+)*(?:-[0-9A-Za-z][0-9A-Za-z.-]*)?(?:\+[0-9A-Za-z][0-9A-Za-z.-]*)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<sign>&&|\|\||==|=~|!=|!~|<=|>=|[<>!()\[\],.])
    )""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t"}
_INSTEAD = {"=": "==", "~": "=~", "&": "&&", "|": "||"}


def tokens(text: str) -> Iterator[Token]:
    """Yield all tokens of a condition, and then END repeatedly. Raises ExpressionError."""
    if len(text) > LONGEST:
        raise ExpressionError(LONGEST + 1, f"the condition has {len(text)} characters; at most {LONGEST} are read")
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise _unreadable(text, at + len(text[at:]) - len(text[at:].lstrip()))
        sort = Sort(found.lastgroup or "")
        column = found.start(sort) + 1
        raw = found[sort]
        yield Token(sort, _unquoted(raw, column) if sort is Sort.TEXT else raw, column)
        at = found.end()
    while True:
        yield Token(Sort.END, "", end + 1)


def _unreadable(text: str, at: int) -> ExpressionError:
    sign = text[at]
    if sign in "\"'":
        return ExpressionError(at + 1, f"the text that begins here has no end: close it with {sign}")
    if sign in _INSTEAD:
        return ExpressionError(at + 1, f'"{sign}" means nothing here: write "{_INSTEAD[sign]}"')
    return ExpressionError(at + 1, f'"{sign}" means nothing here: a text needs quotes')


def _unquoted(raw: str, column: int) -> str:
    parts: list[str] = []
    inner = iter(enumerate(raw[1:-1], start=column + 1))
    for at, character in inner:
        if character != "\\":
            parts.append(character)
            continue
        _, escaped = next(inner)
        if escaped not in _ESCAPES:
            raise ExpressionError(at, f'"\\{escaped}" means nothing in a text: write "\\\\" for a backslash')
        parts.append(_ESCAPES[escaped])
    return "".join(parts)
