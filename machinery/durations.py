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
    """Return the shortest form that `parse_duration` accepts: `1h30m`, `0s`. It is rounded to milliseconds."""
    left = round(duration / timedelta(milliseconds=1))
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, left = divmod(left, round(_UNITS[unit] / timedelta(milliseconds=1)))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def human_duration(seconds: float) -> str:
    """Format with at most two units, the finer unit only for small values: `47s`, `5m12s`, `3h20m`, `2d5h`, `400d`."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    whole = max(whole, 0)
    for limit, unit, letter, finer, fine_letter, fine_until in (
        (2 * _MINUTE, 1, "s", 0, "", 0),
        (3 * _HOUR, _MINUTE, "m", 1, "s", 10 * _MINUTE),
        (2 * _DAY, _HOUR, "h", _MINUTE, "m", 8 * _HOUR),
        (2 * 365 * _DAY, _DAY, "d", _HOUR, "h", 8 * _DAY),
    ):
        if whole < limit:
            fine = whole % unit // finer if finer and whole < fine_until else 0
            return f"{whole // unit}{letter}" + (f"{fine}{fine_letter}" if fine else "")
    years, days = divmod(whole // _DAY, 365)
    return f"{years}y{days}d" if days and years < 8 else f"{years}y"  # noqa: PLR2004 - kubectl's threshold
