"""Shared parts of several kinds."""

from collections.abc import Mapping
from typing import Any

OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""Schema of objects that are stored unvalidated."""
UNKNOWN = "<unknown>"
NONE = "<none>"


def part(document: Mapping[str, Any], *path: str) -> Any:
    """The value at `path`; None when a part of the path is missing."""
    here: Any = document
    for step in path:
        here = here.get(step) if isinstance(here, Mapping) else None
    return here
