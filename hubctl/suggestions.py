"""Suggestions for mistyped words."""

from collections.abc import Iterable

ALIKE = 0.6


def closest(word: str, known: Iterable[str]) -> str:
    """`: did you mean "x"?`, or empty when nothing is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

    found = get_close_matches(word.lower(), list(known), n=1, cutoff=ALIKE)
    return f': did you mean "{found[0]}"?' if found else ""
