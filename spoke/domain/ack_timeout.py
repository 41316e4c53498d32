"""How long a beat may stay unacknowledged before the hub counts as silent, whatever TCP and keepalive report."""

from dataclasses import dataclass
from datetime import timedelta

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
