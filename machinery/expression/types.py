"""Types of fields and literals, and how they read values of documents. A value of another type counts as missing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from math import isfinite
from typing import Any

from machinery.durations import parse_duration
from machinery.expression.values import LONGEST, KubernetesVersion, parse_number, parse_quantity, parse_version

Scalar = bool | str | Fraction | timedelta | KubernetesVersion


class Type(StrEnum):
    """Type of a single value; the strings appear in error messages."""

    BOOLEAN = "true or false"
    TEXT = "text"
    NUMBER = "number"
    DURATION = "duration"
    VERSION = "version"
    QUANTITY = "quantity"

    @property
    def has_order(self) -> bool:
        """Whether < and > apply. Not for texts, since every database orders them differently."""
        return self not in (Type.BOOLEAN, Type.TEXT)

    def literal(self, text: str) -> Scalar:
        """Parse a literal. Raises ValueError with the expected form."""
        return _LITERALS[self](text)

    def read(self, raw: Any) -> Scalar | None:
        """Read a value of a document; None when it is missing or of another type."""
        if isinstance(raw, bool | timedelta | KubernetesVersion):
            return raw if self is _OWN[type(raw)] else None
        if isinstance(raw, int | float | Fraction) and self in (Type.NUMBER, Type.QUANTITY):
            return None if isinstance(raw, float) and not isfinite(raw) else Fraction(raw)
        if not isinstance(raw, str):
            return None
        try:
            return self.literal(raw)
        except ValueError:
            return None


_OWN: Mapping[type, Type] = {bool: Type.BOOLEAN, timedelta: Type.DURATION, KubernetesVersion: Type.VERSION}


def _duration(text: str) -> timedelta:
    if len(text) > LONGEST:
        raise ValueError(f'"{text[:LONGEST]}" is not a duration: write it like 90m or 1h30m')
    return parse_duration(text)


def _boolean(text: str) -> bool:
    raise ValueError(f'"{text[:LONGEST]}" is neither true nor false')


_LITERALS: Mapping[Type, Callable[[str], Scalar]] = {
    Type.BOOLEAN: _boolean,
    Type.TEXT: str,
    Type.NUMBER: parse_number,
    Type.DURATION: _duration,
    Type.VERSION: parse_version,
    Type.QUANTITY: parse_quantity,
}


@dataclass(frozen=True, slots=True)
class ListOf:
    """Several values of one type."""

    of: Type

    def __str__(self) -> str:
        return f"list of {self.of}"

    def read(self, raw: Any) -> tuple[Scalar, ...] | None:
        """The entries of the right type; None when there is no list."""
        if isinstance(raw, str) or not isinstance(raw, Sequence | frozenset):
            return None
        return tuple(entry for each in raw if (entry := self.of.read(each)) is not None)


@dataclass(frozen=True, slots=True)
class MapOf:
    """Values of one type by arbitrary names, such as labels."""

    of: Type

    def __str__(self) -> str:
        return f"map of {self.of}"

    def read(self, raw: Any, key: str) -> Scalar | None:
        """One entry; None when it is missing or of another type."""
        return self.of.read(raw.get(key)) if isinstance(raw, Mapping) else None


FieldType = Type | ListOf | MapOf
