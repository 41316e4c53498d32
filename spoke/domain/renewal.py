"""Renewing ahead of time, because the hub asks for it: when, of the certificates that it means.

The moment is drawn from the certificate's serial, as every renewal's: agents of a fleet that are asked at once do not come at
once, and one that starts again comes to the same moment, or nearly. Asked for again it is never later than at first.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from machinery.identity import SerialNumber
from spoke.domain.rotation import BACKDATE, drawn

ADDONS_WITHIN = timedelta(minutes=1)
"""Where the agent's own certificate is new already."""


@dataclass(frozen=True, slots=True)
class RequestedRenewal:
    """What the hub asks for."""

    within: timedelta | None = None
    """Present: the certificate of this session is meant; it is renewed at a random moment within this."""
    addons_before: datetime | None = None
    """Present: certificates of add-ons that the hub issued before this are meant too."""

    def due(self, serial: SerialNumber, heard_at: datetime) -> datetime | None:
        """When the agent's own certificate is due, in hub time; None: it is not meant."""
        return None if self.within is None else moment(serial, heard_at, self.within)

    def addon_due(self, serial: SerialNumber, not_before: datetime, heard_at: datetime) -> datetime | None:
        """When an add-on's certificate is due, in hub time; None: it is not meant.

        Certificates tell whole seconds: one of the very second of the order is taken for a later one.
        """
        if self.addons_before is None or not_before + BACKDATE >= self.addons_before.replace(microsecond=0):
            return None
        return moment(serial, heard_at, ADDONS_WITHIN if self.within is None else self.within)


class AskedAgain:
    """Of a hub that is asked now and then, and answers how much time is left: the first answer about a certificate counts."""

    def __init__(self) -> None:
        self._drawn: tuple[SerialNumber, datetime] | None = None

    def due(self, serial: SerialNumber, in_time: datetime, within: timedelta | None, now: datetime) -> datetime:
        """When the certificate is renewed: `in_time`, or sooner where the hub has asked for it."""
        before = self._drawn[1] if self._drawn is not None and self._drawn[0] == serial else in_time
        if within is not None:
            before = min(before, moment(serial, now, within))
        self._drawn = serial, min(before, in_time)
        return self._drawn[1]


def moment(serial: SerialNumber, heard_at: datetime, within: timedelta) -> datetime:
    """Where in the time that is left the certificate with this serial is renewed."""
    return heard_at + max(within, timedelta()) * drawn(serial)
