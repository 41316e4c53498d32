"""How much all replicas of a hub log, where an operator has ordered something: a level, until a time."""

from datetime import datetime, timedelta

import msgspec

from machinery.durations import format_duration
from machinery.errors import Cause, InvalidError

LEVELS = ("debug", "info", "warning", "error")
LONGEST = timedelta(days=7)
USUAL = timedelta(minutes=15)
"""For which `debug` is ordered when nobody says for how long: it is forgotten otherwise."""


class LogLevelOrder(msgspec.Struct, frozen=True):
    """What was ordered, and who did."""

    level: str
    until: datetime
    by: str

    def is_due(self, now: datetime) -> bool:
        """Whether it still counts."""
        return now < self.until


def ordered(level: str, lasts: timedelta, by: str, now: datetime) -> LogLevelOrder:
    """Raises InvalidError for what cannot be ordered."""
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
