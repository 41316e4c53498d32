"""Imported first by programs that serve: what they never show is not loaded.

structlog takes rich along where that is installed, for tracebacks in colour: 4 MB that stay for good. Who wants rich itself
imports it later as ever.
"""

import sys
from typing import Any

UNSEEN = "rich"


def _load_structlog() -> None:
    modules: dict[str, Any] = sys.modules
    is_absent = UNSEEN not in modules
    if is_absent:
        modules[UNSEEN] = None  # what an import takes for a module that is not installed
    try:
        import structlog.dev  # noqa: F401, PLC0415 - for the sake of what it does not find
    finally:
        if is_absent:
            del modules[UNSEEN]


_load_structlog()
