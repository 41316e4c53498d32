"""Early renewal at the hub's request: when, and for which certificates.

The moment is drawn from the certificate's serial, as for every renewal. So agents of a fleet do not renew at once, and a
restarted agent gets the same moment, or nearly. A repeated request never moves it later.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from machinery.identity import SerialNumber
from spoke.domain.rotation import BACKDATE, drawn

ADDONS_WITHIN = timedelta(minutes=1)
"""The time for add-ons when the agent's own certificate is already new."""


@dataclass(frozen=True, slots=True)
class RequestedRenewal:
    """The hub's request."""

    within: timedelta | None = None
    """If present, the certificate of this session is to be renewed at a random moment within this time."""
    addons_before: datetime | None = None
    """If present, certificates of add-ons that the hub issued before this are to be renewed, too."""

    def due(self, serial: SerialNumber, heard_at: datetime) -> datetime | None:
        """When the agent's own certificate is due, in hub time; None: not requested."""
        return None if self.within is None else moment(serial, heard_at, self.within)

    def addon_due(self, serial: SerialNumber, not_before: datetime, heard_at: datetime) -> datetime | None:
        """When an add-on's certificate is due, in hub time; None: not requested.

        Certificates have whole seconds: one issued in the second of the request counts as later.
        """
        if self.addons_before is None or not_before + BACKDATE >= self.addons_before.replace(microsecond=0):
            return None
        return moment(serial, heard_at, ADDONS_WITHIN if self.within is None else self.within)


class AskedAgain:
    """Renewal requests that a standby hub repeats with the time left; the earliest moment for a certificate counts."""

    def __init__(self) -> None:
        self._drawn: tuple[SerialNumber, datetime] | None = None

    def due(self, serial: SerialNumber, in_time: datetime, within: timedelta | None, now: datetime) -> datetime:
        """When the certificate is renewed: `in_time`, or earlier at the hub's request."""
        before = self._drawn[1] if self._drawn is not None and self._drawn[0] == serial else in_time
        if within is not None:
            before = min(before, moment(serial, now, within))
        self._drawn = serial, min(before, in_time)
        return self._drawn[1]


def moment(serial: SerialNumber, heard_at: datetime, within: timedelta) -> datetime:
    """The moment within the remaining time at which the certificate with this serial is renewed."""
    return heard_at + max(within, timedelta()) * drawn(serial)
