"""Parser and type checker of conditions, in one pass.

condition   = conjunction *("||" conjunction)
conjunction = negation *("&&" negation)
negation    = "!" negation / relation
relation    = operand [("==" / "!=" / "<" / "<=" / ">" / ">=" / "=~" / "!~" / "in") operand]
operand     = "(" condition ")" / "[" [literal *("," literal)] "]" / literal / call / path
call        = "has(" path ")" / path "." function "(" literal ")"
path        = name *("." name / "[" text "]")
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast, get_args

from machinery.expression import tree
from machinery.expression.names import FieldNames, Path, closest, literal_value
from machinery.expression.patterns import regular_expression
from machinery.expression.syntax import ExpressionError, Sort, Token, tokens
from machinery.expression.types import Fields, ListOf, Type

DEEPEST = 40
MOST_PARTS = 500
MOST_PATTERNS = 8
"""Largest number of regular expressions in one condition. Each may use a MiB of memory."""
COMPARATORS: tuple[str, ...] = get_args(tree.Comparator)
MATCHES, DIFFERS = "=~", "!~"
FUNCTIONS: tuple[str, ...] = get_args(tree.TextFunction)


def read(text: str, fields: Fields) -> tree.Condition:
    """Parse a condition over these fields into its tree. Raises ExpressionError."""
    return _Parser(text, fields).condition()


def parse_operand(text: str, fields: Fields) -> tree.Field | tree.MapEntry:
    """Parse the name of a single value, such as `labels["tier"]`. Raises ExpressionError, also for a whole list or map."""
    return _Parser(text, fields).operand()


@dataclass(frozen=True, slots=True)
class _Part:
    """Result of a grammar rule: a path, a literal, a list of literals, or a condition. `column`: position for errors."""

    column: int
    what: Path | Token | tuple[Token, ...] | tree.Condition
    function: str = ""


class _Parser:
    """Recursive descent parser with one token of look-ahead."""

    def __init__(self, text: str, fields: Fields) -> None:
        self._tokens = tokens(text)
        self._next = next(self._tokens)
        self._names = FieldNames(fields)
        self._deep = 0
        self._parts = 0
        self._patterns = 0

    def condition(self) -> tree.Condition:
        if self._at_end():
            raise ExpressionError(1, "there is no condition")
        found = self._disjunction()
        if not self._at_end():
            raise ExpressionError(self._next.column, f"found {self._next.shown}, expected &&, || or the end")
        return self._truth(found)

    def operand(self) -> tree.Field | tree.MapEntry:
        if self._next.sort is not Sort.NAME:
            raise ExpressionError(self._next.column, f"found {self._next.shown}, expected a field")
        found = self._named()
        if not isinstance(found.what, Path) or not self._at_end():
            raise ExpressionError(self._next.column, f"found {self._next.shown}, expected one field and no more")
        return self._names.single(found.what)

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

    def _disjunction(self) -> _Part:
        return self._junction("||", tree.Any, lambda: self._junction("&&", tree.All, self._negation))

    def _junction(
        self, sign: str, node: Callable[[tuple[tree.Condition, ...]], tree.Condition], operand: Callable[[], _Part]
    ) -> _Part:
        first = operand()
        if not self._next.is_sign(sign):
            return first
        operands = [self._truth(first)]
        while self._next.is_sign(sign):
            self._take()
            operands.append(self._truth(operand()))
        return _Part(first.column, node(tuple(operands)))

    def _negation(self) -> _Part:
        if not self._next.is_sign("!"):
            return self._relation()
        column = self._take().column
        return _Part(column, tree.Not(self._truth(self._deeper(column, self._negation))))

    def _deeper(self, column: int, inner: Callable[[], _Part]) -> _Part:
        self._deep += 1
        if self._deep > DEEPEST:
            raise ExpressionError(column, f"more than {DEEPEST} parentheses and negations within each other")
        part = inner()
        self._deep -= 1
        return part

    def _relation(self) -> _Part:
        left = self._operand()
        if self._next.is_sign(MATCHES, DIFFERS):
            sign = self._take()
            return _Part(sign.column, self._pattern_match(sign, left, self._operand()))
        is_in = self._next.sort is Sort.NAME and self._next.text == "in"
        if not is_in and not self._next.is_sign(*COMPARATORS):
            return left
        sign, right = self._take(), self._operand()
        if self._next.is_sign(*COMPARATORS):
            raise ExpressionError(self._next.column, "comparisons do not chain: write a < b && b < c")
        return _Part(sign.column, (self._membership if is_in else self._comparison)(sign, left, right))

    def _operand(self) -> _Part:
        token = self._next
        if token.is_sign("("):
            self._take()
            part = self._deeper(token.column, self._disjunction)
            self._expect(")", "to close the parenthesis")
            return part
        if token.is_sign("["):
            items = []
            self._take()
            while not self._next.is_sign("]"):
                items.append(self._literal())
                if not self._next.is_sign("]"):
                    self._expect(",", "or ] in the list")
            self._take()
            return _Part(token.column, tuple(items))
        if token.sort is Sort.NAME and token.text not in ("true", "false", "in"):
            return self._named()
        return _Part(token.column, self._literal())

    def _literal(self) -> Token:
        token = self._next
        is_truth = token.sort is Sort.NAME and token.text in ("true", "false")
        if token.sort not in (Sort.NUMERAL, Sort.TEXT) and not is_truth:
            quoted = f': a text needs quotes, as in "{token.text[:40]}"' if token.sort is Sort.NAME else ""
            raise ExpressionError(token.column, f"found {token.shown}, expected a field or a value{quoted}")
        return self._take()

    def _named(self) -> _Part:
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
            return _Part(steps[0].column, Path(tuple(steps)))
        self._take()
        function, argument = steps.pop(), self._operand()
        self._expect(")", f"after the argument of {function.text}")
        return _Part(function.column, self._call(function, Path(tuple(steps)), argument), function.text)

    def _truth(self, part: _Part) -> tree.Condition:
        """Return a part as a condition: a comparison, a call, or a value of type BOOLEAN."""
        match part.what:
            case tuple():
                raise ExpressionError(part.column, "a list is not a condition: write FIELD in [...]")
            case Token(sort=Sort.NAME, text=text):
                return tree.IsTrue(tree.Value(Type.BOOLEAN, value=text == "true"))
            case Token():
                raise ExpressionError(part.column, "a value is not a condition: compare a field with it")
            case Path() as path:
                found = self._names.found(path)
                if not isinstance(found, tree.CollectionField) and found.type is Type.BOOLEAN:
                    return tree.IsTrue(found)
                what = f"{path} is a {found.type}, not a condition: compare it, or write has({path})"
                raise ExpressionError(part.column, what)
            case condition:
                return condition

    def _comparison(self, sign: Token, left: _Part, right: _Part) -> tree.Condition:
        for side in (left, right):
            if side.function:
                raise ExpressionError(sign.column, f"{side.function}() is a condition already and compares with nothing")
        first: tree.Operand
        second: tree.Operand
        if isinstance(left.what, Path):
            first = self._names.single(left.what)
            second = self._value(right, first.type)
        elif isinstance(right.what, Path):
            second = self._names.single(right.what)
            first = self._value(left, second.type)
        else:
            raise ExpressionError(sign.column, f'"{sign.text}" needs a field on one of its sides')
        if first.type is not second.type:
            raise ExpressionError(sign.column, f"a {first.type} cannot be compared with a {second.type}")
        if sign.text not in ("==", "!=") and not first.type.has_order:
            raise ExpressionError(sign.column, f'"{sign.text}" has no meaning for {first.type}: use == or !=')
        return tree.Compare(cast("tree.Comparator", sign.text), first, second)

    def _pattern_match(self, sign: Token, left: _Part, right: _Part) -> tree.Condition:
        if not isinstance(left.what, Path):
            raise ExpressionError(sign.column, f'"{sign.text}" needs a field before it')
        operand = self._names.single(left.what)
        if operand.type is not Type.TEXT:
            raise ExpressionError(sign.column, f'"{sign.text}" is for text, and {left.what} is a {operand.type}')
        if not isinstance(right.what, Token) or right.what.sort is not Sort.TEXT:
            raise ExpressionError(right.column, f'"{sign.text}" needs a regular expression in quotes')
        self._patterns += 1
        if self._patterns > MOST_PATTERNS:
            raise ExpressionError(sign.column, f"at most {MOST_PATTERNS} regular expressions in one condition")
        try:
            matches = regular_expression(right.what.text)
        except ValueError as error:
            raise ExpressionError(right.column, str(error)) from None
        found = tree.PatternMatch(operand, right.what.text, sign.column, matches)
        return found if sign.text == MATCHES else tree.Not(found)

    def _membership(self, sign: Token, left: _Part, right: _Part) -> tree.Condition:
        if isinstance(right.what, tuple):
            if not isinstance(left.what, Path):
                raise ExpressionError(sign.column, '"in" needs a field before it when a list is written out')
            operand = self._names.single(left.what)
            return tree.OneOf(operand, tuple(literal_value(item, operand.type) for item in right.what))
        collection = self._names.found(right.what) if isinstance(right.what, Path) else None
        if not isinstance(collection, tree.CollectionField):
            raise ExpressionError(right.column, '"in" needs a list or a map after it, as in name in ["a", "b"]')
        wanted = collection.type.of if isinstance(collection.type, ListOf) else Type.TEXT
        found = self._value(left, wanted)
        if found.type is not wanted:
            raise ExpressionError(sign.column, f"a {found.type} cannot be in a {collection.type}")
        return tree.In(found, collection)

    def _call(self, function: Token, subject: Path, argument: _Part) -> tree.Condition:
        name = function.text
        if name not in (FUNCTIONS if subject.steps else ("has",)):
            near = closest(name, (*FUNCTIONS, "has"))
            meant = f"did you mean {near}? " if near else ""
            known = f'there are {", ".join(FUNCTIONS)}, as in name.startsWith("edge-"), and has(FIELD)'
            raise ExpressionError(function.column, f'there is no function "{name}": {meant}{known}')
        if not subject.steps:
            if not isinstance(argument.what, Path):
                raise ExpressionError(argument.column, "has() asks for a field, as in has(labels.tier)")
            return tree.Has(self._names.found(argument.what))
        operand = self._names.single(subject)
        if operand.type is not Type.TEXT:
            raise ExpressionError(function.column, f"{name} is for text, and {subject} is a {operand.type}")
        if not isinstance(argument.what, Token) or argument.what.sort is not Sort.TEXT:
            raise ExpressionError(argument.column, f"{name} needs a text in quotes")
        return tree.Match(cast("tree.TextFunction", name), operand, argument.what.text)

    def _value(self, part: _Part, wanted: Type) -> tree.Operand:
        """Return a part as an operand: a field, or a literal of the type `wanted`."""
        if isinstance(part.what, Path):
            return self._names.single(part.what, or_text=wanted is Type.TEXT)
        if isinstance(part.what, Token):
            return tree.Value(wanted, literal_value(part.what, wanted))
        raise ExpressionError(part.column, "expected a field or a value here")
