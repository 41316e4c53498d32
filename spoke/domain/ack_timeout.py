"""How long a beat may stay unacknowledged before the hub counts as silent, whatever TCP and keepalive say."""

from dataclasses import dataclass
from datetime import timedelta

SILENCE = timedelta(seconds=5)
"""A beat unacknowledged for this long ends the session."""
PATIENCE = timedelta(seconds=10)
"""The same where beats come more often than every SILENCE, as the hub is told in Hello: it acknowledges many at once then.
Either way a hub that stores no beats is left within fifteen seconds, or within the longer interval that it asks for and
SILENCE; one that is gone or stands still is found by keepalive before that."""
UNANSWERED = timedelta(seconds=20)
"""The same where a beat is a request among others, to a server that may be slow without being gone."""


@dataclass(frozen=True, slots=True)
class Detection:
    """How a hub is found to be gone without a word."""

    keepalive: timedelta = timedelta(seconds=10)
    """An idle connection is tried so often."""
    keepalive_timeout: timedelta = timedelta(seconds=5)
    silence: timedelta = SILENCE
    """In place of SILENCE; PATIENCE grows and shrinks with it."""


def patience(beat_interval: timedelta, silence: timedelta = SILENCE) -> timedelta:
    """In a session that begins with this interval. If a shorter lease makes it shorter later, the hub answers faster too."""
    return (PATIENCE if beat_interval < SILENCE else SILENCE) * (silence / SILENCE)
