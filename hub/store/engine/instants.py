"""Converts instants to the tables' format: whole microseconds since 1970 in UTC."""

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def optional_micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)


def optional_instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
