"""When the next beat is due.

Beats are in step: at multiples of STEP by the hub's clock, each after a randomly drawn interval. A hub with a thousand agents
then wakes up once for a hundred beats instead of a hundred times; waking up is most of the cost of a beat. The step is drawn
for each beat, so that agents that reconnected together spread over all steps. Where the range holds no choice of steps, beats
are not in step.
"""

from datetime import UTC, datetime, timedelta

SHORTEST = 0.75
"""Each interval is drawn between this share of it and the whole."""
STEP = timedelta(seconds=2)
SPREAD = timedelta(milliseconds=20)
"""Beats follow within this time after their step, so that a network need not carry ten thousand in one instant."""
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def pause(interval: timedelta, drawn: float, hub_time: datetime | None = None) -> timedelta:
    """Time until the next beat: from SHORTEST of the interval to the whole, plus SPREAD when in step.

    `drawn`: 0 for the longest, below 1. `hub_time`: the hub's present time; None: not in step, as without a choice of steps.
    """
    shortest = interval * SHORTEST
    plain = interval - (interval - shortest) * drawn
    if hub_time is None or interval // STEP - shortest // STEP < 2:  # noqa: PLR2004 - to choose from, just behind a step
        return plain
    gone = hub_time - _BEGINNING
    first, last = -(-(gone + shortest) // STEP), (gone + interval) // STEP
    place = drawn * (last - first + 1)
    return (last - int(place)) * STEP - gone + SPREAD * (place % 1)
