"""Kubernetes' timestamps: `Time` (seconds) and `MicroTime` (microseconds), both RFC 3339 in UTC."""

import re
from datetime import UTC, datetime
from functools import lru_cache

from machinery.durations import human_duration

SECONDS = len("2026-11-21T07:51:08")
_GO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


@lru_cache(maxsize=64)  # a transaction formats the same time dozens of times
def format_time(moment: datetime) -> str:
    """Format as metav1.Time: `2026-11-21T07:51:08Z`."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")[:SECONDS] + "Z"


def format_micro_time(moment: datetime) -> str:
    """Format as metav1.MicroTime: `2026-11-21T07:51:08.123456Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> datetime:
    """Parse either form with any offset into an aware UTC instant. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        msg = f"timestamp {text!r} has no time zone"
        raise ValueError(msg)
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # at the edge of the years 1 to 9999
        raise ValueError(f"timestamp {text!r} is out of range") from None


def is_go_time(text: str, *, micro: bool = False) -> bool:
    """Whether Go can read the text as metav1.Time, or with `micro` as metav1.MicroTime. `parse_time` accepts more forms."""
    found = _GO.fullmatch(text)
    try:
        return found is not None and (not micro or len(found[1] or "") == len(".000000")) and bool(parse_time(text))
    except ValueError:
        return False


def age_of(moment: str | None, now: datetime) -> str:
    """Return the age of an RFC 3339 time in kubectl's format; `<unknown>` if there is no time, `<invalid>` for other text."""
    if not moment:
        return "<unknown>"
    try:
        return human_duration((now - parse_time(moment)).total_seconds())
    except ValueError:
        return "<invalid>"
