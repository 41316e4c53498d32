"""What somebody may have meant who made a mistake in typing."""

from collections.abc import Iterable

ALIKE = 0.6


def closest(word: str, known: Iterable[str]) -> str:
    """`: did you mean "x"?`, or "" where nothing is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

    found = get_close_matches(word.lower(), list(known), n=1, cutoff=ALIKE)
    return f': did you mean "{found[0]}"?' if found else ""
