"""Durations such as `500ms`, `60s`, `1h30m`, `30d`."""

import re
from datetime import timedelta

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str) -> timedelta:
    """Parse a duration. Raises ValueError with the expected form."""
    if not _WHOLE.fullmatch(text.strip()):
        msg = f'"{text[:80]}" is not a duration: write a number with its unit (ms, s, m, h or d), such as 60s, 1h30m or 30d'
        raise ValueError(msg)
    try:
        return sum((float(number) * _UNITS[unit] for number, unit in _PART.findall(text)), timedelta())
    except OverflowError:
        msg = f'"{text[:80]}" is longer than any duration can be'
        raise ValueError(msg) from None


def format_duration(duration: timedelta) -> str:
    """Shortest form that `parse_duration` accepts: `1h30m`, `0s`. Rounded to milliseconds."""
    left = round(duration / timedelta(milliseconds=1))
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, left = divmod(left, round(_UNITS[unit] / timedelta(milliseconds=1)))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
