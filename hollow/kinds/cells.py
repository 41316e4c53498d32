"""What several kinds use to describe themselves."""

from collections.abc import Mapping
from typing import Any

OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""The schema of what is stored as it comes."""
UNKNOWN = "<unknown>"
NONE = "<none>"


def part(document: Mapping[str, Any], *path: str) -> Any:
    """What stands at `path`; None when a part of the way is missing."""
    here: Any = document
    for step in path:
        here = here.get(step) if isinstance(here, Mapping) else None
    return here
