"""Patterns for texts: globs, and regular expressions of RE2. Matching takes time proportional to the length of the text."""

import re
from collections.abc import Callable
from functools import lru_cache

LONGEST = 256
MEMORY = 1024 * 1024


def regular_expression(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests whether a whole text matches an RE2 expression. Raises ValueError."""
    size = len(pattern.encode())
    if size > LONGEST:
        raise ValueError(f"a regular expression has at most {LONGEST} bytes, not {size}")
    import re2  # noqa: PLC0415 - hubctl and the agent use this package without RE2

    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = MEMORY, False, True
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace")
        raise ValueError(f"not a regular expression of RE2: {why}") from None
    return lambda text: compiled.fullmatch(text) is not None


def glob_matches(text: str, pattern: str) -> bool:
    """Whether a glob matches the whole text. It searches each part between `*` once, from the left, without backtracking."""
    first, *others = _parts(pattern)
    if not others:
        return first.fullmatch(text) is not None
    found = first.match(text)
    if found is None:
        return False
    at = found.end()
    for part in others[:-1]:
        found = part.search(text, at)
        if found is None:
            return False
        at = found.end()
    start = len(text) - _length(others[-1])
    return start >= at and others[-1].fullmatch(text, start) is not None


@lru_cache(maxsize=1024)
def _parts(pattern: str) -> tuple[re.Pattern[str], ...]:
    """Return the parts between stars as regular expressions: a question mark becomes a dot, other characters are escaped."""
    parts, escaped = [""], False
    for character in pattern:
        if escaped or character not in "*?\\":
            parts[-1] += re.escape(character)
            escaped = False
        elif character == "*":
            parts.append("")
        elif character == "?":
            parts[-1] += "."
        else:
            escaped = True
    return tuple(re.compile(part, re.DOTALL) for part in parts)


@lru_cache(maxsize=4096)
def _length(part: re.Pattern[str]) -> int:
    return len(re.sub(r"\\(.)", r"\1", part.pattern, flags=re.DOTALL))
