"""How large an object may become by what a cluster says of itself.

No object grows beyond `OBJECT_LIMIT`, and an agent that filled one to the last byte would keep operators from writing into it:
from denying its cluster, say. So who belongs to a cluster, or is about to, leaves room for them, at whichever door it speaks.
"""

import msgspec

from hub.api.meta.change import Document, StoredObject
from machinery.errors import TooLargeError
from machinery.identity import BOOTSTRAP_USER_PREFIX, RECOVERY_USER_PREFIX, SUBJECT_PREFIX

OF_CLUSTERS = (SUBJECT_PREFIX, BOOTSTRAP_USER_PREFIX, RECOVERY_USER_PREFIX)
MOST = 1280 * 1024
"""Bytes of its JSON: a quarter of a MiB less than what operators may write."""
FEW = 1024
"""By so many bytes at once grows what was larger before, as an earlier release took it: a condition is False and not True."""
LAST = 1664 * 1024
"""So far: an eighth of a MiB less than what operators come to in that way."""

_encode = msgspec.json.Encoder().encode


def check(document: Document, old: StoredObject | None, actor: str) -> None:
    """Raises TooLargeError when somebody of a cluster makes an object larger than that; what makes it smaller is taken.

    What the hub itself writes on its behalf, as where it moved to, is not to be asked about.
    """
    if not actor.startswith(OF_CLUSTERS):
        return
    size, before = len(_encode(document)), len(old.encoded) if old is not None else 0
    grown = before + FEW if before > MOST else MOST
    if size > max(before, min(grown, LAST)):
        raise TooLargeError(f"the object is too large: {size} bytes, and an agent may fill {MOST}")
