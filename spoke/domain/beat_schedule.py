"""When the next beat is due.

Agents beat in step: at whole multiples of STEP by their hub's clock, each after an interval of its own drawing. A hub with a
thousand agents wakes up for a hundred beats at once in place of a hundred times, and waking up is most of what a beat costs it.
Which step an agent takes is drawn anew each time, so that those that came back together spread over all steps; where there is
no choice of steps nobody is in step.
"""

from datetime import UTC, datetime, timedelta

SHORTEST = 0.75
"""Each interval is drawn from this part of it to the whole."""
STEP = timedelta(seconds=2)
SPREAD = timedelta(milliseconds=20)
"""Beats come within this after their step: no network has to carry ten thousand in the same instant."""
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def pause(interval: timedelta, drawn: float, hub_time: datetime | None = None) -> timedelta:
    """Until the next beat: from SHORTEST of the interval to the whole, and SPREAD where it is in step.

    `drawn`: 0 for the longest, below 1. `hub_time`: the hub's present; None: in no step, as where the range has no choice.
    """
    shortest = interval * SHORTEST
    plain = interval - (interval - shortest) * drawn
    if hub_time is None or interval // STEP - shortest // STEP < 2:  # noqa: PLR2004 - to choose from, just behind a step
        return plain
    gone = hub_time - _BEGINNING
    first, last = -(-(gone + shortest) // STEP), (gone + interval) // STEP
    place = drawn * (last - first + 1)
    return (last - int(place)) * STEP - gone + SPREAD * (place % 1)
