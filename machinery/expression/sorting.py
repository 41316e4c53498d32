"""Sort keys: texts whose byte order is the order of the values, so that a database can compare and index them.

Two values have the same sort key exactly when they are equal.
"""

from datetime import timedelta
from fractions import Fraction

from machinery.expression.types import Scalar
from machinery.expression.values import KubernetesVersion

_ZERO, _BELOW, _ABOVE = "1", "0", "2"
_MIDDLE = 500
"""Offset of the exponent, which has three digits."""
_LAST = "~"
"""Greater than every digit: ends a negative number, of which the longer is the smaller."""
_COMPLEMENT = str.maketrans("0123456789", "9876543210")
_END = " "
"""Less than every character of a version."""
_MICROSECOND = timedelta(microseconds=1)


def sort_key(value: Scalar) -> str:
    """Sort key of a value. Raises ValueError for a value without order or without finite decimal form."""
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
    """Digits of a positive number without trailing zeros, and the exponent of the first digit."""
    twos, rest = _divided(value.denominator, 2)
    fives, rest = _divided(rest, 5)
    if rest != 1:
        raise ValueError(f"{value} has no finite decimal form")
    places = max(twos, fives)
    digits = str((value * 10**places).numerator)
    return digits.rstrip("0"), len(digits) - 1 - places


def _divided(value: int, by: int) -> tuple[int, int]:
    """How often `value` is divisible by `by`, and the quotient."""
    count = 0
    while value % by == 0:
        value, count = value // by, count + 1
    return count, value


def _version(value: KubernetesVersion) -> str:
    release = "".join(_integer(part) for part in (value.major, value.minor, value.patch))
    early = "".join(_integer(number) if not is_word else f"w{word}{_END}" for is_word, number, word in value.early)
    return f"{release}{int(value.final)}{early}"


def _integer(value: int) -> str:
    """Number of digits (two digits), then the digits; for up to 99 digits."""
    return f"{len(str(value)):02d}{value}"
