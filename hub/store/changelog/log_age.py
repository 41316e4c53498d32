"""When rows were written that follow each other, where a clock was ahead for a while and was put right.

Their times are in the future then, and stay so for as long as it was ahead. Whoever lets go of what is old, in order, would
stop at the first of them until then. But such a row was written before the one after it.
"""

from collections.abc import Callable, Sequence


def written_by(times: Sequence[int], now: int, following: Callable[[], int | None]) -> Sequence[int]:
    """When each of some rows in order was written at the latest: at its time, or, if that is in the future, at the next row's.

    `following`: the time of the first row behind these whose time is not in the future; None: there is none.
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
