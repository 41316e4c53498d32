"""Resolves the names of a condition to declared fields, and types its literals."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile

from machinery.expression import tree
from machinery.expression.syntax import ExpressionError, Sort, Token
from machinery.expression.types import Fields, ListOf, MapOf, Scalar, Type


@dataclass(frozen=True, slots=True)
class Path:
    """A reference in a condition: a name, then names after dots or quoted texts in brackets, such as `labels["tier"]`."""

    steps: tuple[Token, ...]

    def __str__(self) -> str:
        shown = (f'["{step.text}"]' if step.sort is Sort.TEXT else f".{step.text}" for step in self.steps)
        return "".join(shown).removeprefix(".")


class FieldNames:
    """Finds the declared field to which a Path refers. All methods raise ExpressionError if there is none."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def single(self, path: Path, *, or_text: bool = False) -> tree.Field | tree.MapEntry:
        """Resolve a path to a field or an entry of a map. A whole list or map is an error."""
        found = self.found(path, or_text=or_text)
        if isinstance(found, tree.CollectionField):
            how = f'"x" in {path}' if isinstance(found.type, ListOf) else f'{path}["x"]'
            raise ExpressionError(path.steps[0].column, f"{path} is a {found.type}: write {how}")
        return found

    def found(self, path: Path, *, or_text: bool = False) -> tree.Field | tree.MapEntry | tree.CollectionField:
        """Resolve the longest declared name at the start of the path, with at most one key after it.

        `or_text`: a text is also valid here, so the error for an unknown name mentions missing quotes.
        """
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
                near = closest(".".join(names), (each for each in self._fields.types if each.startswith(f"{name}.")))
                meant = f': did you mean "{near}"?' if near else ""
                raise ExpressionError(rest[0].column, f'{name} is a {known} and has no "{rest[0].text[:80]}"{meant}')
            return tree.Field(name, known) if isinstance(known, Type) else tree.CollectionField(name, known)
        name = ".".join(names)
        near = closest(name, self._fields.types)
        meant = f'did you mean "{near}"? ' if near else ""
        if or_text and len(path.steps) == 1:
            meant = f'a text needs quotes, as in "{name[:80]}"; {meant}'
        listed = f"fields are {self._fields.described()}"
        raise ExpressionError(path.steps[0].column, f'there is no field "{name[:80]}": {meant}{listed}')


def literal_value(literal: Token, wanted: Type) -> Scalar:
    """Return the value of a literal of the type `wanted`. Raises ExpressionError."""
    if wanted is Type.TEXT and literal.sort in (Sort.NUMERAL, Sort.NAME):
        raise ExpressionError(literal.column, f'a text is expected here: write "{literal.text}" in quotes')
    if literal.sort is Sort.NAME:
        if wanted is not Type.BOOLEAN:
            raise ExpressionError(literal.column, f"{literal.text} cannot be compared with a {wanted}")
        return literal.text == "true"
    try:
        return wanted.literal(literal.text)
    except ValueError as error:
        raise ExpressionError(literal.column, str(error)) from None


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word with the most similar spelling; None: none is similar."""
    spelled = {each.lower(): each for each in known}
    near = get_close_matches(word.lower(), spelled, n=1)
    return spelled[near[0]] if near else None
