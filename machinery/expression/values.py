"""Parsers, with bounds, for the values that conditions compare, in Kubernetes' notations."""

import re
from dataclasses import dataclass, field
from fractions import Fraction

LONGEST = 64
"""Longest version, number or quantity in characters; longer texts are refused unparsed."""
LARGEST_EXPONENT = 60
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
    """A Kubernetes version. Omitted parts are zero; alpha, beta, rc and similar precede the release.

    A distributor's suffix (`-gke.100`, `-eks-1a2b`, `+k3s1`) is ignored: such a version equals the release.
    """

    major: int
    minor: int = 0
    patch: int = 0
    final: bool = True
    early: tuple[tuple[bool, int, str], ...] = field(default=())
    """Parts of a pre-release name: numbers precede words, as in semantic versioning."""


def parse_version(text: str) -> KubernetesVersion:
    """`v1.30.2`, `1.30`, `1.31.0-rc.1`. Raises ValueError with the expected form."""
    found = _VERSION.fullmatch(text) if len(text) <= LONGEST else None
    if found is None:
        raise ValueError(f'"{text[:LONGEST]}" is not a version: write it like 1.30 or v1.30.2')
    major, minor, patch = (int(part or 0) for part in found.groups()[:3])
    suffix = (found[4] or "").lower()
    if not suffix.startswith(_EARLY):
        return KubernetesVersion(major, minor, patch)
    return KubernetesVersion(major, minor, patch, final=False, early=tuple(_part(part) for part in suffix.split(".")))


def _part(text: str) -> tuple[bool, int, str]:
    return (False, int(text), "") if text.isascii() and text.isdigit() else (True, 0, text)


def parse_quantity(text: str) -> Fraction:
    """Kubernetes' resource quantity: `64Gi`, `500m`, `1e3`, `1.5`. Raises ValueError with the expected form."""
    found = _QUANTITY.fullmatch(text) if len(text) <= LONGEST else None
    exponent = int(found[4] or 0) if found else 0
    if found is None or abs(exponent) > LARGEST_EXPONENT:
        raise ValueError(f'"{text[:LONGEST]}" is not a quantity: write it like 64Gi, 500m or 8')
    sign = -1 if found[1] == "-" else 1
    scale = {**_BINARY, **_DECIMAL}.get(found[3] or "", Fraction(1))
    return sign * Fraction(found[2]) * scale * Fraction(10) ** exponent


def parse_number(text: str) -> Fraction:
    """A decimal number. Raises ValueError with the expected form."""
    if len(text) > LONGEST or not re.fullmatch(r"[+-]?\d+(\.\d+)?", text, re.ASCII):
        raise ValueError(f'"{text[:LONGEST]}" is not a number: write it like 3 or 0.5')
    return Fraction(text)
