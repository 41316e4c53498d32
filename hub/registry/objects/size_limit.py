"""Size limit for objects written by agents, so that operators can always still write to them.

No object exceeds `OBJECT_LIMIT`. An agent that filled an object completely would prevent operators from writing it, for example
from denying its cluster. The limit applies to all callers of a cluster and to bootstrap credentials, at both doors.
"""

import msgspec

from hub.api.meta.change import Document, StoredObject
from machinery.errors import TooLargeError
from machinery.identity import BOOTSTRAP_USER_PREFIX, RECOVERY_USER_PREFIX, SUBJECT_PREFIX

OF_CLUSTERS = (SUBJECT_PREFIX, BOOTSTRAP_USER_PREFIX, RECOVERY_USER_PREFIX)
MOST = 1280 * 1024
"""Largest JSON in bytes that an agent may write. Operators may write 256 KiB more (`OBJECT_LIMIT`)."""
FEW = 1024
"""Objects above MOST, from an earlier release, may grow by this much per write, so that a condition can still change."""
LAST = 1664 * 1024
"""No write of an agent enlarges an object beyond this: 128 KiB less than operators reach in the same way."""

_encode = msgspec.json.Encoder().encode


def check(document: Document, old: StoredObject | None, actor: str) -> None:
    """Raise TooLargeError if a caller from a cluster enlarges an object above its limit. Writes that shrink it are accepted.

    The hub's own writes on the caller's behalf, for example of a move, are not checked.
    """
    if not actor.startswith(OF_CLUSTERS):
        return
    size, before = len(_encode(document)), len(old.encoded) if old is not None else 0
    grown = before + FEW if before > MOST else MOST
    if size > max(before, min(grown, LAST)):
        raise TooLargeError(f"the object is too large: {size} bytes, and an agent may fill {MOST}")
