"""Kubernetes quantities: exact parsing, addition and formatting.

Grammar: a decimal number with an optional suffix: `n u m k M G T P E` (powers of 1000), `Ki … Ei` (powers of 1024) or a decimal
exponent. A sum keeps the format of its first operand, as in Kubernetes, with the largest suffix that leaves a whole number.
"""

import re
from decimal import Decimal, InvalidOperation
from enum import Enum

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SHAPE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d{1,3}))?")


class Format(Enum):
    BINARY = "BinarySI"
    DECIMAL = "DecimalSI"


def parse_quantity(text: str) -> tuple[Decimal, Format]:
    """The exact value and its format. Raises ValueError for an invalid quantity."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity")
    number, binary, decimal, exponent = match.groups()
    try:
        value = Decimal(number)
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not a Kubernetes quantity") from error
    if binary:
        return value * _BINARY[binary], Format.BINARY
    power = int(exponent) if exponent else _DECIMAL[decimal or ""]
    return value.scaleb(power), Format.DECIMAL


def format_quantity(value: Decimal, form: Format) -> str:
    """The canonical text: the largest suffix without a fraction. Fractions of a nano are rounded up."""
    if form is Format.BINARY and value == value.to_integral_value():
        whole = int(value)
        for suffix, factor in reversed(_BINARY.items()):
            if whole and whole % factor == 0:
                return f"{whole // factor}{suffix}"
        return str(whole)
    for suffix, power in reversed(_DECIMAL.items()):
        scaled = value.scaleb(-power)
        if scaled == scaled.to_integral_value() and (scaled or not suffix):
            return f"{int(scaled)}{suffix}"
    return f"{int(value.scaleb(9).to_integral_value(rounding='ROUND_CEILING'))}n"


def add(first: str, second: str) -> str:
    """The sum, in the format of `first` unless `first` is zero."""
    (left, form), (right, other) = parse_quantity(first), parse_quantity(second)
    return format_quantity(left + right, form if left else other)
