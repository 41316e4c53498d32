"""When a certificate is due for renewal.

One threshold is drawn per certificate, from its serial: agents that joined in the same minute do not renew in the same minute,
and a restarted agent gets the same instant. All times are the hub's.
"""

import hashlib
from datetime import datetime, timedelta

from machinery.identity import SerialNumber

EARLIEST = 0.25
"""Largest share of the lifetime that may be left at a renewal."""
LATEST = 0.20
BACKDATE = timedelta(minutes=5)


def threshold(serial: SerialNumber) -> float:
    """The share of the lifetime left when the certificate is renewed: in (0.20, 0.25], always the same for one serial."""
    return EARLIEST - (EARLIEST - LATEST) * drawn(serial)


def drawn(serial: SerialNumber) -> float:
    """A number in [0, 1), always the same for one serial."""
    digest = hashlib.sha256(str(int(serial)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def rotate_at(serial: SerialNumber, not_before: datetime, not_after: datetime) -> datetime:
    """The instant, in hub time, at which the certificate is due for renewal.

    The hub backdates certificates; the backdated part does not count, because it would be most of a short lifetime.
    """
    begun = not_before + BACKDATE
    life = not_after - (begun if begun < not_after else not_before)
    return not_after - life * threshold(serial)
