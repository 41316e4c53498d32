"""Lexer and parser for the text of conditions, without knowledge of the declared fields.

condition   = conjunction *("||" conjunction)
conjunction = negation *("&&" negation)
negation    = "!" negation / relation
relation    = operand [("==" / "!=" / "<" / "<=" / ">" / ">=" / "in") operand]
operand     = "(" condition ")" / "[" [literal *("," literal)] "]" / literal / call / path
call        = "has(" path ")" / path "." function "(" literal ")"
path        = name *("." name / "[" text "]")
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from machinery.errors import InvalidError

LONGEST = 4096
"""Longest condition in characters."""


class ExpressionError(InvalidError):
    """A text is not a valid condition over the fields. `column`: position from 1; the message states what is valid there."""

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
    """A token. `text` of a quoted text is without quotes and escapes."""

    sort: Sort
    text: str
    column: int

    def is_sign(self, *signs: str) -> bool:
        return self.sort is Sort.SIGN and self.text in signs

    @property
    def shown(self) -> str:
        """Form in error messages."""
        return "the end" if self.sort is Sort.END else f'"{self.text[:40]}"'


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<numeral>(?:-?\d[0-9A-Za-z]*|v\d+(?=\.))(?:\.[0-9A-Za-z]+)*(?:-[0-9A-Za-z][0-9A-Za-z.-]*)?(?:\+[0-9A-Za-z][0-9A-Za-z.-]*)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<sign>&&|\|\||==|!=|<=|>=|[<>!()\[\],.])
    )""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t"}
_INSTEAD = {"=": "==", "&": "&&", "|": "||"}


def tokens(text: str) -> Iterator[Token]:
    """Yield all tokens, then END without end. Raises ExpressionError."""
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


DEEPEST = 40
"""Deepest nesting of parentheses and negations."""
MOST_PARTS = 500
RELATIONS = ("==", "!=", "<", "<=", ">", ">=", "in")


@dataclass(frozen=True, slots=True)
class ListLiteral:
    column: int
    items: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Path:
    """A name, then names after dots and quoted texts in brackets."""

    column: int
    steps: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """`subject.function(argument)`, and `has(argument)` without a subject."""

    column: int
    function: str
    subject: Path | None
    argument: "Parsed"


@dataclass(frozen=True, slots=True)
class Relation:
    column: int
    operator: str
    left: "Parsed"
    right: "Parsed"


@dataclass(frozen=True, slots=True)
class Negation:
    column: int
    operand: "Parsed"


@dataclass(frozen=True, slots=True)
class LogicalOperation:
    """All of the operands ("&&"), or any ("||")."""

    column: int
    operator: str
    operands: tuple["Parsed", ...]


Parsed = Token | ListLiteral | Path | FunctionCall | Relation | Negation | LogicalOperation
"""A token is a literal: a numeral, a quoted text, or true or false."""


def read(text: str) -> Parsed:
    """Parse a condition. Raises ExpressionError."""
    return _Reader(text).parse()


def read_path(text: str) -> Path:
    """Parse a single field, as in `labels["tier"]`. Raises ExpressionError."""
    return _Reader(text).path()


class _Reader:
    """Recursive descent parser with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._next = next(self._tokens)
        self._deep = 0
        self._parts = 0

    def parse(self) -> Parsed:
        if self._at_end():
            raise ExpressionError(1, "there is no condition")
        parsed = self._condition()
        if self._next.is_sign(*RELATIONS):
            raise ExpressionError(self._next.column, "comparisons do not chain: write a < b && b < c")
        if not self._at_end():
            raise ExpressionError(self._next.column, f"found {self._next.shown}, expected &&, || or the end")
        return parsed

    def path(self) -> Path:
        if self._next.sort is not Sort.NAME:
            raise ExpressionError(self._next.column, f"found {self._next.shown}, expected a field")
        named = self._named()
        if not isinstance(named, Path) or not self._at_end():
            raise ExpressionError(self._next.column, f"found {self._next.shown}, expected one field and no more")
        return named

    def _at_end(self) -> bool:
        return self._next.sort is Sort.END

    def _take(self) -> Token:
        taken, self._next = self._next, next(self._tokens)
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise ExpressionError(taken.column, f"the condition has more than {MOST_PARTS} parts: make several of it")
        return taken

    def _expect(self, sign: str, what: str) -> Token:
        if not self._next.is_sign(sign):
            raise ExpressionError(self._next.column, f'found {self._next.shown}, expected "{sign}" {what}')
        return self._take()

    def _condition(self) -> Parsed:
        return self._junction("||", lambda: self._junction("&&", self._negation))

    def _junction(self, operator: str, operand: Callable[[], Parsed]) -> Parsed:
        column, operands = self._next.column, [operand()]
        while self._next.is_sign(operator):
            self._take()
            operands.append(operand())
        return operands[0] if len(operands) == 1 else LogicalOperation(column, operator, tuple(operands))

    def _negation(self) -> Parsed:
        if not self._next.is_sign("!"):
            return self._relation()
        column = self._take().column
        return self._deeper(column, lambda: Negation(column, self._negation()))

    def _deeper(self, column: int, inner: Callable[[], Parsed]) -> Parsed:
        self._deep += 1
        if self._deep > DEEPEST:
            raise ExpressionError(column, f"more than {DEEPEST} parentheses and negations within each other")
        parsed = inner()
        self._deep -= 1
        return parsed

    def _relation(self) -> Parsed:
        left = self._operand()
        is_in = self._next.sort is Sort.NAME and self._next.text == "in"
        if not is_in and not self._next.is_sign(*RELATIONS):
            return left
        operator = self._take()
        return Relation(operator.column, operator.text, left, self._operand())

    def _operand(self) -> Parsed:
        token = self._next
        if token.is_sign("("):
            self._take()
            parsed = self._deeper(token.column, self._condition)
            self._expect(")", "to close the parenthesis")
            return parsed
        if token.is_sign("["):
            items = []
            self._take()
            while not self._next.is_sign("]"):
                items.append(self._literal())
                if not self._next.is_sign("]"):
                    self._expect(",", "or ] in the list")
            self._take()
            return ListLiteral(token.column, tuple(items))
        if token.sort is Sort.NAME and token.text not in ("true", "false", "in"):
            return self._named()
        return self._literal()

    def _literal(self) -> Token:
        token = self._next
        is_truth = token.sort is Sort.NAME and token.text in ("true", "false")
        if token.sort not in (Sort.NUMERAL, Sort.TEXT) and not is_truth:
            raise ExpressionError(token.column, f"found {token.shown}, expected a field or a value")
        return self._take()

    def _named(self) -> Parsed:
        steps = [self._take()]
        while self._next.is_sign(".", "["):
            indexed = self._take().text == "["
            if self._next.sort is not (Sort.TEXT if indexed else Sort.NAME):
                wanted = 'a text in quotes, as in labels["tier"]' if indexed else 'a name after "."'
                raise ExpressionError(self._next.column, f"found {self._next.shown}, expected {wanted}")
            steps.append(self._take())
            if indexed:
                self._expect("]", "after the name in brackets")
        if not self._next.is_sign("("):
            return Path(steps[0].column, tuple(steps))
        self._take()
        function, argument = steps.pop(), self._operand()
        self._expect(")", f"after the argument of {function.text}")
        subject = Path(steps[0].column, tuple(steps)) if steps else None
        return FunctionCall(function.column, function.text, subject, argument)
