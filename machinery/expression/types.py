"""Types of fields and literals: bounded parsing of values, reading from documents, and sort keys for databases.

A value of a wrong type counts as missing. Two values have the same sort key if and only if they are equal.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from math import ceil, isfinite
from typing import Any

from machinery.durations import parse_duration

LONGEST = 64
"""Longest version, number, quantity or duration in characters. Longer texts are refused without being parsed."""
LARGEST_EXPONENT = 60
MOST_PLACES = 1_100
"""Most decimal places of a number. Every float has fewer."""
_EARLY = ("alpha", "beta", "rc", "pre", "dev", "snapshot")
_VERSION = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)
_QUANTITY = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,3}))?", re.ASCII)
_BINARY = {unit: Fraction(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
_DECIMAL = {
    **{unit: Fraction(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{unit: Fraction(1, 1000) ** power for power, unit in enumerate(("m", "u", "n"), start=1)},
}


@dataclass(frozen=True, slots=True, order=True)
class KubernetesVersion:
    """A Kubernetes version. Omitted parts are zero. Pre-releases (alpha, beta, rc and similar) precede the release.

    The suffix of a distributor (`-gke.100`, `-eks-1a2b`, `+k3s1`) is ignored, so a version with a suffix equals the release.
    """

    major: int
    minor: int = 0
    patch: int = 0
    final: bool = True
    early: tuple[tuple[bool, int, str], ...] = field(default=())
    """Parts of a pre-release name: (is it a word, number, word). Numbers precede words, as in semantic versioning."""


def parse_version(text: str) -> KubernetesVersion:
    """Parse `v1.30.2`, `1.30`, `1.31.0-rc.1`. Raises ValueError with the expected form."""
    found = _VERSION.fullmatch(text) if len(text) <= LONGEST else None
    if found is None:
        raise ValueError(f'"{text[:LONGEST]}" is not a version: write it like 1.30 or v1.30.2')
    major, minor, patch = (int(part or 0) for part in found.groups()[:3])
    suffix = (found[4] or "").lower()
    if not suffix.startswith(_EARLY):
        return KubernetesVersion(major, minor, patch)
    parts = ((False, int(part), "") if part.isascii() and part.isdigit() else (True, 0, part) for part in suffix.split("."))
    return KubernetesVersion(major, minor, patch, final=False, early=tuple(parts))


def parse_quantity(text: str) -> Fraction:
    """Parse a Kubernetes resource quantity: `64Gi`, `500m`, `1e3`, `1.5`. Raises ValueError with the expected form."""
    found = _QUANTITY.fullmatch(text) if len(text) <= LONGEST else None
    exponent = int(found[4] or 0) if found else 0
    if found is None or abs(exponent) > LARGEST_EXPONENT:
        raise ValueError(f'"{text[:LONGEST]}" is not a quantity: write it like 64Gi, 500m or 8')
    sign = -1 if found[1] == "-" else 1
    scale = {**_BINARY, **_DECIMAL}.get(found[3] or "", Fraction(1))
    return sign * Fraction(found[2]) * scale * Fraction(10) ** exponent


def parse_number(text: str) -> Fraction:
    """Parse a decimal number. Raises ValueError with the expected form."""
    if len(text) > LONGEST or not re.fullmatch(r"[+-]?\d+(\.\d+)?", text, re.ASCII):
        raise ValueError(f'"{text[:LONGEST]}" is not a number: write it like 3 or 0.5')
    return Fraction(text)


Scalar = bool | str | Fraction | timedelta | KubernetesVersion


class Type(StrEnum):
    """Type of a single value. Error messages contain these strings."""

    BOOLEAN = "true or false"
    TEXT = "text"
    NUMBER = "number"
    DURATION = "duration"
    VERSION = "version"
    QUANTITY = "quantity"

    @property
    def has_order(self) -> bool:
        """Whether < and > apply. They do not apply to texts, because each database orders texts differently."""
        return self not in (Type.BOOLEAN, Type.TEXT)

    def literal(self, text: str) -> Scalar:
        """Return the value of a literal of this type. Raises ValueError with the expected form."""
        return _LITERALS[self](text)

    def read(self, raw: Any) -> Scalar | None:
        """Read a value of a document; None if it is missing or has a wrong type."""
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
        """Read the entries that have the right type; None if there is no list."""
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
        """Read one entry; None if it is missing or has a wrong type."""
        return self.of.read(raw.get(key)) if isinstance(raw, Mapping) else None


FieldType = Type | ListOf | MapOf


@dataclass(frozen=True)
class Fields:
    """Declared fields. Names may contain dots, as in `requester.user`. A path refers to the longest name at its start."""

    types: Mapping[str, FieldType]

    def described(self) -> str:
        """Return the sorted names of all fields, for messages and documentation."""
        return ", ".join(sorted(self.types))


_ZERO, _BELOW, _ABOVE = "1", "0", "2"
_MIDDLE = 500
"""Added to the exponent, so that it is never negative. The result has three digits."""
_LAST = "~"
"""Greater than every digit. It ends negative numbers: -1.23 is less than -1.2, although its text is longer."""
_COMPLEMENT = str.maketrans("0123456789", "9876543210")
_END = " "
"""Less than every character in a version's sort key."""
_MICROSECOND = timedelta(microseconds=1)


def sort_key(value: Scalar) -> str:
    """Return the sort key of a value. Raises ValueError for a value without an order or without a finite decimal form."""
    match value:
        case Fraction():
            return _number(value)
        case timedelta():
            return _number(Fraction(value // _MICROSECOND))
        case KubernetesVersion():
            return _version(value)
        case _:
            raise ValueError(f"a {type(value).__name__} has no order")


def _number(value: Fraction) -> str:
    if not value:
        return _ZERO
    digits, exponent = _scientific(abs(value))
    text = f"{exponent + _MIDDLE:03d}{digits}"
    return _ABOVE + text if value > 0 else _BELOW + text.translate(_COMPLEMENT) + _LAST


def _scientific(value: Fraction) -> tuple[str, int]:
    """Return the digits of a positive number without trailing zeros, and the exponent of the first digit."""
    whole, places = value, 0
    while whole.denominator != 1:
        whole, places = whole * 10, places + 1
        if places > MOST_PLACES:
            raise ValueError(f"{value} has no finite decimal form")
    digits = str(whole.numerator)
    return digits.rstrip("0"), len(digits) - 1 - places


def number_of(key: str) -> Fraction | int:
    """Return the number with this sort key: an int if possible, because sums of ints are faster."""
    if key == _ZERO:
        return 0
    text = key[1:] if key.startswith(_ABOVE) else key[1:].removesuffix(_LAST).translate(_COMPLEMENT)
    places = int(text[:3]) - _MIDDLE + 4 - len(text)
    number = int(text[3:]) * 10**places if places >= 0 else Fraction(int(text[3:]), 10**-places)
    return number if key.startswith(_ABOVE) else -number


def format_quantity(value: Fraction | int, *, binary: bool = False) -> str:
    """Return the exact value as a quantity, with the largest suffix that needs no decimals: Ki to Ei (`binary`), m, u or n.

    Values finer than n are rounded up, as in Kubernetes.
    """
    binaries = reversed(_BINARY.items()) if binary and value else ()
    for unit, scale in (*binaries, ("", Fraction(1)), *((unit, _DECIMAL[unit]) for unit in ("m", "u"))):
        if not value % scale:
            return f"{value / scale}{unit}"
    return f"{ceil(value / _DECIMAL['n'])}n"


def _version(value: KubernetesVersion) -> str:
    release = "".join(_integer(part) for part in (value.major, value.minor, value.patch))
    early = "".join(_integer(number) if not is_word else f"w{word}{_END}" for is_word, number, word in value.early)
    return f"{release}{int(value.final)}{early}"


def _integer(value: int) -> str:
    """Return the number of digits (as two digits) and the digits, so that texts sort like numbers. At most 99 digits."""
    return f"{len(str(value)):02d}{value}"
