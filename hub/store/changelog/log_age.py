"""Bounds the age of rows whose times are in the future because a clock was ahead.

Retention removes old rows in order and would stop at the first such row until its time has come. But a row was written before
the row that follows it.
"""

from collections.abc import Callable, Sequence


def written_by(times: Sequence[int], now: int, following: Callable[[], int | None]) -> Sequence[int]:
    """Latest possible write time of each row of a sequence: its own time or, if that is in the future, that of the next row.

    `following`: returns the time of the first later row whose time is not in the future; None: there is none.
    """
    found: list[int] = []
    latest: int | None = None
    for time in reversed(times):
        if time <= now:
            latest = time
        elif latest is None:
            latest = following()
            latest = now if latest is None else latest
        found.append(latest)
    return found[::-1]
