"""The first import of programs: structlog without rich, and a message if an extra of the distribution is not installed.

structlog imports rich where it is installed, for coloured tracebacks, at 4 MB. A later import of rich still works.
"""

import sys
from importlib.util import find_spec
from typing import Any

from machinery.product import DISTRIBUTION

UNSEEN = "rich"
EXTRAS = {
    "hub": (
        *("aiohttp", "alembic", "apscheduler", "grpc", "grpc_health", "jsonpatch", "kubernetes", "msgspec"),
        *("psycopg", "psycopg_pool", "pydantic", "re2", "sqlalchemy"),
    ),
    "spoke": ("aiohttp", "apscheduler", "grpc", "kubernetes", "pydantic"),
    "hollow": ("aiohttp", "apscheduler", "grpc", "jsonpatch", "kubernetes", "msgspec"),
}
"""The packages that a program needs in addition to those of hubctl, which every installation has."""


def require_extra(program: str) -> None:
    """End the program with a sentence if its extra, which has its name, is not installed."""
    missing = ", ".join(name for name in EXTRAS[program] if not find_spec(name))
    if missing:
        sys.exit(f"{program}: its extra is not installed (missing: {missing}): pip install '{DISTRIBUTION}[{program}]'")


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
