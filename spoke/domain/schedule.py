"""Times of beats and of certificate renewals, chosen so that the agents of a fleet do not act at the same time.

Beats: agents send beats in step, at multiples of STEP by the hub's clock. So the hub wakes up once for many beats; waking up is
most of the cost of a beat. Each agent draws a random interval for every beat, so that agents that reconnected together spread
over all steps. If the range of intervals contains fewer than two steps, beats are not in step.

Certificates: a certificate is due for renewal after a share of its lifetime, or earlier if the hub requests this. Times are hub
times. The share is a pseudo-random number that is computed from the serial. So agents that joined in the same minute do not
renew in the same minute, and a restarted agent gets the same time again, or nearly. A repeated request of the hub never delays
the renewal.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from machinery.identity import SerialNumber

SILENCE = timedelta(seconds=5)
"""If a beat is not acknowledged within this time, the session ends."""
MAX_ACK_TIMEOUT = timedelta(seconds=10)
"""Replaces SILENCE for beat intervals below SILENCE. Hello reports this time to the hub, which acknowledges beats together.

If a hub stores no beats, the agent leaves it after at most 15 s, or after SILENCE plus the beat interval if this is longer.
Keepalive detects earlier that a hub is gone or frozen.
"""
UNANSWERED = timedelta(seconds=20)
"""Replaces SILENCE for the driver `csr`. Its beats are separate requests, and a slow API server does not count as lost."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Times that determine when the agent treats a hub as lost."""

    keepalive: timedelta = timedelta(seconds=10)
    keepalive_timeout: timedelta = timedelta(seconds=5)
    silence: timedelta = SILENCE
    """The configured value of SILENCE (`--hub-silence`). MAX_ACK_TIMEOUT changes by the same factor."""


def ack_timeout(beat_interval: timedelta, silence: timedelta = SILENCE) -> timedelta:
    """Return the time limit for acknowledgements in a session that begins with this beat interval.

    The limit does not change when the hub shortens the interval later, because the hub then also acknowledges faster.
    """
    return (MAX_ACK_TIMEOUT if beat_interval < SILENCE else SILENCE) * (silence / SILENCE)


SHORTEST_INTERVAL = 0.75
"""The random time between two beats is at least this share of the beat interval, and at most the whole interval."""
STEP = timedelta(seconds=2)
SPREAD = timedelta(milliseconds=20)
"""Beats are spread over this time after their step, so that ten thousand beats do not arrive at the same instant."""
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def pause(interval: timedelta, drawn: float, hub_time: datetime | None = None) -> timedelta:
    """Return the time until the next beat: from `interval * SHORTEST_INTERVAL` to `interval`, plus SPREAD if in step.

    `drawn`: a random number in [0, 1); 0 gives the longest time. `hub_time`: the hub's present time; None: not in step.
    """
    shortest = interval * SHORTEST_INTERVAL
    plain = interval - (interval - shortest) * drawn
    if hub_time is None or interval // STEP - shortest // STEP < 2:  # noqa: PLR2004 - at least two steps
        return plain
    gone = hub_time - _BEGINNING
    first, last = -(-(gone + shortest) // STEP), (gone + interval) // STEP
    place = drawn * (last - first + 1)
    return (last - int(place)) * STEP - gone + SPREAD * (place % 1)


EARLIEST = 0.25
"""A certificate is renewed at the earliest when this share of its lifetime is left."""
LATEST = 0.20
BACKDATE = timedelta(minutes=5)


def threshold(serial: SerialNumber) -> float:
    """Return the share of the lifetime that is left at the renewal: in (0.20, 0.25], constant for each serial."""
    return EARLIEST - (EARLIEST - LATEST) * drawn(serial)


def drawn(serial: SerialNumber) -> float:
    """Return a pseudo-random number in [0, 1), constant for each serial."""
    digest = hashlib.sha256(str(int(serial)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def rotate_at(serial: SerialNumber, not_before: datetime, not_after: datetime) -> datetime:
    """Return the instant, in hub time, at which the certificate is due for renewal.

    The hub backdates certificates. The backdated part does not count as lifetime, because it would be most of a short lifetime.
    """
    begun = not_before + BACKDATE
    life = not_after - (begun if begun < not_after else not_before)
    return not_after - life * threshold(serial)


ADDONS_WITHIN = timedelta(minutes=1)
"""Time within which certificates of add-ons are renewed if the agent's own certificate is already new."""


@dataclass(frozen=True, slots=True)
class RequestedRenewal:
    within: timedelta | None = None
    """If present, the agent must renew this session's certificate at a random moment within this time."""
    addons_before: datetime | None = None
    """If present, the agent must also renew certificates of add-ons that the hub issued before this instant."""

    def addon_due(self, serial: SerialNumber, not_before: datetime, received_at: datetime) -> datetime | None:
        """Return when an add-on's certificate is due, in hub time; None: no renewal is requested.

        Times in certificates are whole seconds, so a certificate that was issued in the same second counts as issued later.
        """
        if self.addons_before is None or not_before + BACKDATE >= self.addons_before.replace(microsecond=0):
            return None
        return moment(serial, received_at, ADDONS_WITHIN if self.within is None else self.within)


class RenewalTime:
    """The time of a certificate's renewal, in hub time: by its lifetime, or earlier at the hub's request."""

    def __init__(self, serial: SerialNumber, not_before: datetime, not_after: datetime) -> None:
        self.serial = serial
        self.due = rotate_at(serial, not_before, not_after)

    def ask(self, within: timedelta | None, received_at: datetime) -> bool:
        """Apply the hub's request (`within` None: no request). Return whether the renewal is now due earlier.

        A request never delays the renewal.
        """
        asked = moment(self.serial, received_at, within) if within is not None else self.due
        earlier = asked < self.due
        self.due = min(asked, self.due)
        return earlier


def moment(serial: SerialNumber, received_at: datetime, within: timedelta) -> datetime:
    """Return the moment, within this time after the request arrived, at which the certificate with this serial is renewed."""
    return received_at + max(within, timedelta()) * drawn(serial)
