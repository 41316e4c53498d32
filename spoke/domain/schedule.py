"""Times of beats and of certificate renewals, chosen so that the agents of a fleet do not act at the same time.

Beats are in step: at multiples of STEP by the hub's clock, each after a randomly drawn interval. A hub with a thousand agents
then wakes up once for a hundred beats instead of a hundred times; waking up is most of the cost of a beat. The step is drawn
for each beat, so that agents that reconnected together spread over all steps. If the range contains only one step, beats are
not in step. If a beat is not acknowledged in time, the hub is silent, regardless of TCP and keepalive.

A certificate is due by its lifetime, or earlier at the hub's request, in the hub's time. One number is drawn per certificate,
from its serial: agents that joined in the same minute do not renew in the same minute, and a restarted agent gets the same
instant, or nearly. A repeated request of the hub never moves it later.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from machinery.identity import SerialNumber

SILENCE = timedelta(seconds=5)
"""Time without an acknowledgement of a beat after which the session ends."""
MAX_ACK_TIMEOUT = timedelta(seconds=10)
"""The same when beats are more frequent than SILENCE; Hello reports it, because the hub then acknowledges many at once.
In both cases the agent leaves a hub that stores no beats within fifteen seconds, or within SILENCE plus a longer interval that
the hub asks for. Keepalive finds a hub that is gone or frozen earlier.
"""
UNANSWERED = timedelta(seconds=20)
"""The same time if each beat is a separate request to a server that may be slow but not lost."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Timings for the detection of a lost hub."""

    keepalive: timedelta = timedelta(seconds=10)
    """Period of keepalive pings on an idle connection."""
    keepalive_timeout: timedelta = timedelta(seconds=5)
    silence: timedelta = SILENCE
    """Replaces SILENCE; MAX_ACK_TIMEOUT scales with it."""


def ack_timeout(beat_interval: timedelta, silence: timedelta = SILENCE) -> timedelta:
    """The timeout in a session that begins with this interval. A shorter lease later makes the hub answer faster, too."""
    return (MAX_ACK_TIMEOUT if beat_interval < SILENCE else SILENCE) * (silence / SILENCE)


SHORTEST_INTERVAL = 0.75
"""Each interval is drawn between this share of the interval and the whole interval."""
STEP = timedelta(seconds=2)
SPREAD = timedelta(milliseconds=20)
"""Beats follow within this time after their step, so that a network does not carry ten thousand beats in one instant."""
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def pause(interval: timedelta, drawn: float, hub_time: datetime | None = None) -> timedelta:
    """Return the time until the next beat: from SHORTEST_INTERVAL of the interval to the whole, plus SPREAD if in step.

    `drawn`: at least 0 (for the longest time) and below 1. `hub_time`: the hub's present time; None: not in step.
    """
    shortest = interval * SHORTEST_INTERVAL
    plain = interval - (interval - shortest) * drawn
    if hub_time is None or interval // STEP - shortest // STEP < 2:  # noqa: PLR2004 - to choose from, just behind a step
        return plain
    gone = hub_time - _BEGINNING
    first, last = -(-(gone + shortest) // STEP), (gone + interval) // STEP
    place = drawn * (last - first + 1)
    return (last - int(place)) * STEP - gone + SPREAD * (place % 1)


EARLIEST = 0.25
"""Largest share of the lifetime that may be left at a renewal."""
LATEST = 0.20
BACKDATE = timedelta(minutes=5)


def threshold(serial: SerialNumber) -> float:
    """Return the remaining share of the lifetime at the renewal: in (0.20, 0.25], always the same for one serial."""
    return EARLIEST - (EARLIEST - LATEST) * drawn(serial)


def drawn(serial: SerialNumber) -> float:
    """Return a number in [0, 1), always the same for one serial."""
    digest = hashlib.sha256(str(int(serial)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def rotate_at(serial: SerialNumber, not_before: datetime, not_after: datetime) -> datetime:
    """Return the instant, in hub time, at which the certificate is due for renewal.

    The hub backdates certificates; the backdated part does not count, because it would be most of a short lifetime.
    """
    begun = not_before + BACKDATE
    life = not_after - (begun if begun < not_after else not_before)
    return not_after - life * threshold(serial)


ADDONS_WITHIN = timedelta(minutes=1)
"""The time for add-ons if the agent's own certificate is already new."""


@dataclass(frozen=True, slots=True)
class RequestedRenewal:
    within: timedelta | None = None
    """If present, the agent must renew this session's certificate at a random moment within this time."""
    addons_before: datetime | None = None
    """If present, the agent must also renew certificates of add-ons that the hub issued before this instant."""

    def addon_due(self, serial: SerialNumber, not_before: datetime, received_at: datetime) -> datetime | None:
        """Return when an add-on's certificate is due, in hub time; None: no renewal is requested.

        Certificates have whole seconds: a certificate issued in the second of the request counts as later.
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
        """Apply the hub's request. Return whether the renewal is now due earlier. A repeated request never moves it later."""
        asked = moment(self.serial, received_at, within) if within is not None else self.due
        earlier = asked < self.due
        self.due = min(asked, self.due)
        return earlier


def moment(serial: SerialNumber, received_at: datetime, within: timedelta) -> datetime:
    """Return the moment within the remaining time at which the certificate with this serial is renewed."""
    return received_at + max(within, timedelta()) * drawn(serial)
