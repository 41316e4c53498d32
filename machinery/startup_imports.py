"""Saves memory in server programs, which import this module first: keeps structlog from importing rich.

structlog imports rich where it is installed, for coloured tracebacks, at 4 MB. A later import of rich still works.
"""

import sys
from typing import Any

UNSEEN = "rich"


def _load_structlog() -> None:
    modules: dict[str, Any] = sys.modules
    is_absent = UNSEEN not in modules
    if is_absent:
        modules[UNSEEN] = None  # the import system treats this as a missing module
    try:
        import structlog.dev  # noqa: F401, PLC0415 - for the sake of what it does not find
    finally:
        if is_absent:
            del modules[UNSEEN]


_load_structlog()
