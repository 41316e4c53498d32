"""An operator's order that sets the log level of all replicas until a time."""

from datetime import datetime, timedelta

import msgspec

from machinery.durations import format_duration
from machinery.errors import Cause, InvalidError

LEVELS = ("debug", "info", "warning", "error")
LONGEST = timedelta(days=7)
USUAL = timedelta(minutes=15)
"""Duration if none is given, so that `debug` does not stay forever."""


class LogLevelOrder(msgspec.Struct, frozen=True):
    """The ordered level, its end, and the operator."""

    level: str
    until: datetime
    by: str

    def is_due(self, now: datetime) -> bool:
        """Whether the order is still in force."""
        return now < self.until


def ordered(level: str, lasts: timedelta, by: str, now: datetime) -> LogLevelOrder:
    """Raises InvalidError for an unknown level or an invalid duration."""
    if level not in LEVELS:
        message = f'there is no level "{level[:20]}": one of {", ".join(LEVELS)}'
        raise InvalidError(message, causes=(Cause("FieldValueNotSupported", message, "level"),))
    if not timedelta() < lasts <= LONGEST:
        message = f"an order lasts longer than nothing and {format_duration(LONGEST)} at most"
        raise InvalidError(message, causes=(Cause("FieldValueInvalid", message, "for"),))
    return LogLevelOrder(level, now + lasts, by)


def encoded(order: LogLevelOrder | None) -> str:
    return msgspec.json.encode(order).decode()


def decoded(text: str | None) -> LogLevelOrder | None:
    return msgspec.json.decode(text, type=LogLevelOrder | None) if text else None
