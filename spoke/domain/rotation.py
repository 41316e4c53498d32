"""When a certificate is to be replaced.

One threshold is drawn per certificate, from its serial: agents of a fleet that joined in the same minute do not renew in the
same minute, and a restarted agent comes to the same instant as before. All times are the hub's.
"""

import hashlib
from datetime import datetime, timedelta

from machinery.identity import SerialNumber

EARLIEST = 0.25
"""Largest part of the life that may be left at a rotation."""
LATEST = 0.20
BACKDATE = timedelta(minutes=5)


def threshold(serial: SerialNumber) -> float:
    """The part of its life that is left when the certificate is replaced: in (0.20, 0.25], the same for one serial for ever."""
    return EARLIEST - (EARLIEST - LATEST) * drawn(serial)


def drawn(serial: SerialNumber) -> float:
    """A number in [0, 1), the same for one serial for ever."""
    digest = hashlib.sha256(str(int(serial)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def rotate_at(serial: SerialNumber, not_before: datetime, not_after: datetime) -> datetime:
    """The instant, in hub time, at which the certificate is due for replacement.

    The hub dates certificates back; that part was never life, and for a short one it would be most of it.
    """
    begun = not_before + BACKDATE
    life = not_after - (begun if begun < not_after else not_before)
    return not_after - life * threshold(serial)
