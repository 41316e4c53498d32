"""Replaces characters in text from clients that cannot be stored or displayed safely.

Bytes of a header that are not UTF-8 become lone surrogates, which cannot be encoded. Databases reject NUL. Other control
characters can change the display of a terminal.
"""

import re

_STRANGE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")
_SHOWN = "\ufffd"


def is_plain(text: str) -> bool:
    """Whether the text contains no control characters except white space, and no lone surrogates."""
    return _STRANGE.search(text) is None


def can_store(text: str) -> bool:
    """Whether every database can store the text: it has no NUL and no lone surrogates."""
    return _NOT_STORABLE.search(text) is None


def plain(text: str) -> str:
    """Return the text with U+FFFD in place of each character that is not plain."""
    return _STRANGE.sub(_SHOWN, text)
