"""Text of strangers as text that everything takes which keeps or shows it.

A header's bytes that are not UTF-8 come as lone surrogates, which cannot be encoded again; databases take no NUL; other control
characters change what a terminal shows.
"""

import re

_STRANGE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_NOT_KEPT = re.compile("[\x00\ud800-\udfff]")
_SHOWN = "\ufffd"


def is_plain(text: str) -> bool:
    """Whether it holds no control characters but white space, and nothing that is not text."""
    return _STRANGE.search(text) is None


def can_be_kept(text: str) -> bool:
    """Whether every database takes it."""
    return _NOT_KEPT.search(text) is None


def plain(text: str) -> str:
    """The text with a mark in the place of each character that is not plain."""
    return _STRANGE.sub(_SHOWN, text)
