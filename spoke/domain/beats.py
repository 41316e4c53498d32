"""Beats: when the next one is due, and how long one may stay unacknowledged before the hub counts as silent.

Beats are in step: at multiples of STEP by the hub's clock, each after a randomly drawn interval. A hub with a thousand agents
then wakes up once for a hundred beats instead of a hundred times; waking up is most of the cost of a beat. The step is drawn
for each beat, so that agents that reconnected together spread over all steps. Where the range holds no choice of steps, beats
are not in step.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

SILENCE = timedelta(seconds=5)
"""A beat without acknowledgement for this long ends the session."""
PATIENCE = timedelta(seconds=10)
"""The same when beats are more frequent than SILENCE; Hello reports it, because the hub then acknowledges many at once.
In both cases the agent leaves a hub that stores no beats within fifteen seconds, or within SILENCE plus a longer interval that
the hub asks for. Keepalive finds a hub that is gone or frozen earlier.
"""
UNANSWERED = timedelta(seconds=20)
"""The same when each beat is a separate request to a server that may be slow without being gone."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Timings for the detection of a lost hub."""

    keepalive: timedelta = timedelta(seconds=10)
    """Period of keepalive pings on an idle connection."""
    keepalive_timeout: timedelta = timedelta(seconds=5)
    silence: timedelta = SILENCE
    """Replaces SILENCE; PATIENCE scales with it."""


def patience(beat_interval: timedelta, silence: timedelta = SILENCE) -> timedelta:
    """The timeout in a session that begins with this interval. A shorter lease later makes the hub answer faster, too."""
    return (PATIENCE if beat_interval < SILENCE else SILENCE) * (silence / SILENCE)


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
