"""Parses times on the command line: an instant, a duration before now, or a revision."""

from datetime import UTC, datetime

from hubctl.errors import CommandError
from machinery.durations import parse_duration
from machinery.meta.timestamps import format_micro_time

FORMS = "write a time such as 2026-11-01T12:00Z or 2026-11-01 12:00 (here), how long ago such as 2h, or a revision"


def moment(text: str) -> str:
    """The time in the hub's format; empty: now. A time without zone is local. Raises CommandError."""
    asked = text.strip()
    if asked in ("", "now"):
        return ""
    if asked.isascii() and asked.isdecimal():
        return asked
    try:
        parse_duration(asked.removeprefix("-"))
    except ValueError:
        return _instant(asked)
    return f"-{asked.removeprefix('-')}"


def _instant(text: str) -> str:
    try:
        return format_micro_time(datetime.fromisoformat(text).astimezone(UTC))
    except (ValueError, OverflowError):
        raise CommandError(f'"{text}" is no time: {FORMS}', code=2) from None
