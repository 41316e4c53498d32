"""Join labels: an agent may set the labels that an operator lists, and never a reserved label."""

from collections.abc import Iterable, Mapping

from machinery.meta.selectors import valid_label_key, valid_label_value
from machinery.product import is_reserved

ANY = "/*"


def kept(labels: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """The agent's labels that it may set; all others are dropped."""
    listed = tuple(patterns)
    return {key: value for key, value in labels.items() if _is_listed(key, listed) and _is_sound(key, value)}


def _is_listed(key: str, patterns: tuple[str, ...]) -> bool:
    return any(key.startswith(pattern[:-1]) if pattern.endswith(ANY) else key == pattern for pattern in patterns)


def _is_sound(key: str, value: str) -> bool:
    return valid_label_key(key) and valid_label_value(value) and not is_reserved(key)
