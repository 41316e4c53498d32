"""Type checker of conditions: resolves names to declared fields and types literals."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from typing import cast, get_args

from machinery.expression import syntax, tree
from machinery.expression.syntax import ExpressionError, Sort
from machinery.expression.types import FieldType, ListOf, MapOf, Scalar, Type

FUNCTIONS: tuple[str, ...] = get_args(tree.TextFunction)


@dataclass(frozen=True)
class Fields:
    """Declared fields. Names may have dots, as in `requester.user`; no name is the beginning of another name's path."""

    types: Mapping[str, FieldType]

    def described(self) -> str:
        """All names, for messages and documentation."""
        return ", ".join(sorted(self.types))


def checked(parsed: syntax.Parsed, fields: Fields) -> tree.Condition:
    """Check a parsed condition. Raises ExpressionError."""
    return _Checker(fields).condition(parsed)


def checked_operand(path: syntax.Path, fields: Fields) -> tree.Field | tree.MapEntry:
    """Check a single value. Raises ExpressionError, also for a whole list or map."""
    return _Checker(fields).single(path)


class _Checker:
    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def condition(self, parsed: syntax.Parsed) -> tree.Condition:
        match parsed:
            case syntax.LogicalOperation(operator=operator, operands=operands):
                inner = tuple(self.condition(operand) for operand in operands)
                return tree.All(inner) if operator == "&&" else tree.Any(inner)
            case syntax.Negation(operand=operand):
                return tree.Not(self.condition(operand))
            case syntax.Relation(operator="in"):
                return self._membership(parsed)
            case syntax.Relation():
                return self._comparison(parsed)
            case syntax.FunctionCall():
                return self._call(parsed)
            case syntax.ListLiteral(column=column):
                raise ExpressionError(column, "a list is no condition: write FIELD in [...]")
            case syntax.Path() | syntax.Token():
                return self._truth(parsed)

    def _truth(self, parsed: syntax.Path | syntax.Token) -> tree.Condition:
        if isinstance(parsed, syntax.Token):
            if parsed.sort is Sort.NAME:
                return tree.IsTrue(tree.Value(Type.BOOLEAN, value=parsed.text == "true"))
            raise ExpressionError(parsed.column, "a value is no condition: compare a field with it")
        found = self._found(parsed)
        if not isinstance(found, tree.CollectionField) and found.type is Type.BOOLEAN:
            return tree.IsTrue(found)
        raise ExpressionError(
            parsed.column, f"{_shown(parsed)} is a {found.type}, not a condition: compare it, or write has({_shown(parsed)})"
        )

    def _comparison(self, relation: syntax.Relation) -> tree.Condition:
        left, right = relation.left, relation.right
        for side in (left, right):
            if isinstance(side, syntax.FunctionCall):
                self._call(side)  # an unknown function is the more important error
                raise ExpressionError(relation.column, f"{side.function}() is a condition already and compares with nothing")
        first: tree.Operand
        second: tree.Operand
        if isinstance(left, syntax.Path):
            first = self.single(left)
            second = self._operand(right, first.type)
        elif isinstance(right, syntax.Path):
            second = self.single(right)
            first = self._operand(left, second.type)
        else:
            raise ExpressionError(relation.column, f'"{relation.operator}" needs a field on one of its sides')
        if first.type is not second.type:
            raise ExpressionError(relation.column, f"a {first.type} cannot be compared with a {second.type}")
        if relation.operator not in ("==", "!=") and not first.type.has_order:
            raise ExpressionError(relation.column, f'"{relation.operator}" has no meaning for {first.type}: use == or !=')
        return tree.Compare(cast("tree.Comparator", relation.operator), first, second)

    def _membership(self, relation: syntax.Relation) -> tree.Condition:
        right = relation.right
        if isinstance(right, syntax.ListLiteral):
            if not isinstance(relation.left, syntax.Path):
                raise ExpressionError(relation.column, '"in" needs a field before it when a list is written out')
            operand = self.single(relation.left)
            return tree.OneOf(operand, tuple(self._value(item, operand.type) for item in right.items))
        collection = self._found(right) if isinstance(right, syntax.Path) else None
        if not isinstance(collection, tree.CollectionField):
            raise ExpressionError(relation.right.column, '"in" needs a list or a map after it, as in name in ["a", "b"]')
        wanted = collection.type.of if isinstance(collection.type, ListOf) else Type.TEXT
        found = self._operand(relation.left, wanted)
        if found.type is not wanted:
            raise ExpressionError(relation.column, f"a {found.type} cannot be in a {collection.type}")
        return tree.In(found, collection)

    def _call(self, call: syntax.FunctionCall) -> tree.Condition:
        if call.function not in (FUNCTIONS if call.subject else ("has",)):
            near = _nearest(call.function, (*FUNCTIONS, "has"))
            meant = f"did you mean {near}? " if near else ""
            known = f'there are {", ".join(FUNCTIONS)}, as in name.startsWith("edge-"), and has(FIELD)'
            raise ExpressionError(call.column, f'there is no function "{call.function}": {meant}{known}')
        if call.subject is None:
            if not isinstance(call.argument, syntax.Path):
                raise ExpressionError(call.argument.column, "has() asks for a field, as in has(labels.tier)")
            return tree.Has(self._found(call.argument))
        operand = self.single(call.subject)
        if operand.type is not Type.TEXT:
            raise ExpressionError(call.column, f"{call.function} is for text, and {_shown(call.subject)} is a {operand.type}")
        if not isinstance(call.argument, syntax.Token) or call.argument.sort is not Sort.TEXT:
            raise ExpressionError(call.argument.column, f"{call.function} needs a text in quotes")
        return tree.Match(cast("tree.TextFunction", call.function), operand, call.argument.text)

    def _operand(self, parsed: syntax.Parsed, wanted: Type) -> tree.Operand:
        if isinstance(parsed, syntax.Path):
            return self.single(parsed)
        if isinstance(parsed, syntax.Token):
            return tree.Value(wanted, self._value(parsed, wanted))
        raise ExpressionError(parsed.column, "expected a field or a value here")

    def _value(self, literal: syntax.Token, wanted: Type) -> Scalar:
        if literal.sort is Sort.NAME:
            if wanted is not Type.BOOLEAN:
                raise ExpressionError(literal.column, f"{literal.text} cannot be compared with a {wanted}")
            return literal.text == "true"
        if wanted is Type.TEXT and literal.sort is Sort.NUMERAL:
            raise ExpressionError(literal.column, f'a text is expected here: write "{literal.text}" in quotes')
        try:
            return wanted.literal(literal.text)
        except ValueError as error:
            raise ExpressionError(literal.column, str(error)) from None

    def single(self, path: syntax.Path) -> tree.Field | tree.MapEntry:
        found = self._found(path)
        if isinstance(found, tree.CollectionField):
            how = f'"x" in {_shown(path)}' if isinstance(found.type, ListOf) else f'{_shown(path)}["x"]'
            raise ExpressionError(path.column, f"{_shown(path)} is a {found.type}: write {how}")
        return found

    def _found(self, path: syntax.Path) -> tree.Field | tree.MapEntry | tree.CollectionField:
        """Resolve the longest declared name at the start of the path, with at most one key after it."""
        names = [step.text for step in takewhile(lambda step: step.sort is Sort.NAME, path.steps)]
        for length in range(len(names), 0, -1):
            name = ".".join(names[:length])
            known = self._fields.types.get(name)
            if known is None:
                continue
            rest = path.steps[length:]
            if isinstance(known, MapOf) and len(rest) == 1:
                return tree.MapEntry(name, rest[0].text, known.of)
            if rest:
                raise ExpressionError(rest[0].column, f'{name} is a {known} and has no "{rest[0].text}"')
            return tree.Field(name, known) if isinstance(known, Type) else tree.CollectionField(name, known)
        name = ".".join(names)
        near = _nearest(name, self._fields.types)
        meant = f'did you mean "{near}"? ' if near else ""
        raise ExpressionError(path.column, f'there is no field "{name[:80]}": {meant}fields are {self._fields.described()}')


def _nearest(word: str, known: Iterable[str]) -> str | None:
    spelled = {each.lower(): each for each in known}
    near = get_close_matches(word.lower(), spelled, n=1)
    return spelled[near[0]] if near else None


def _shown(path: syntax.Path) -> str:
    shown = (f'["{step.text}"]' if step.sort is Sort.TEXT else f".{step.text}" for step in path.steps)
    return "".join(shown).removeprefix(".")
