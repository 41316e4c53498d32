"""Values as texts that sort, byte by byte, as the values do: what a database can compare and index without knowing the types.

Two values have the same text exactly when they are equal, so the texts are compared for equality as well.
"""

from datetime import timedelta
from fractions import Fraction

from machinery.expression.types import Scalar
from machinery.expression.values import KubernetesVersion

_ZERO, _BELOW, _ABOVE = "1", "0", "2"
_MIDDLE = 500
"""Stands for the exponent 0; exponents have three digits."""
_LAST = "~"
"""Above every digit: ends a number below zero, of which the longer is the smaller."""
_COMPLEMENT = str.maketrans("0123456789", "9876543210")
_END = " "
"""Below every character of a version."""
_MICROSECOND = timedelta(microseconds=1)


def sort_key(value: Scalar) -> str:
    """Raises ValueError for a value that has no order, or no finite decimal form."""
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
    """The digits of a positive number without zeros at the end, and the power of ten of the first."""
    twos, rest = _divided(value.denominator, 2)
    fives, rest = _divided(rest, 5)
    if rest != 1:
        raise ValueError(f"{value} has no finite decimal form")
    places = max(twos, fives)
    digits = str((value * 10**places).numerator)
    return digits.rstrip("0"), len(digits) - 1 - places


def _divided(value: int, by: int) -> tuple[int, int]:
    """How often it can be divided, and what remains."""
    count = 0
    while value % by == 0:
        value, count = value // by, count + 1
    return count, value


def _version(value: KubernetesVersion) -> str:
    release = "".join(_integer(part) for part in (value.major, value.minor, value.patch))
    early = "".join(_integer(number) if not is_word else f"w{word}{_END}" for is_word, number, word in value.early)
    return f"{release}{int(value.final)}{early}"


def _integer(value: int) -> str:
    """Of up to 99 digits: their number, then they."""
    return f"{len(str(value)):02d}{value}"
