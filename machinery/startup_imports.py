"""Imported first by each program: loads libraries without costly parts, and checks that the program's extra is installed.

If rich is installed, structlog imports it for coloured tracebacks, which costs 4 MB. A later import of rich still works. At its
import, aiohttp reads the CAs of the machine twice, at 2 MB, for requests without a TLS context. All clients here have one.
"""

import ssl
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
"""Packages that a program needs in addition to those of hubctl, which every installation has."""


def require_extra(program: str) -> None:
    """If the extra with the program's name is not installed, end the program with a message."""
    missing = ", ".join(name for name in EXTRAS[program] if not find_spec(name))
    if missing:
        sys.exit(f"{program}: its extra is not installed (missing: {missing}): pip install '{DISTRIBUTION}[{program}]'")


def load_http_client() -> None:
    """Import aiohttp, but prevent it from reading the CAs of the machine."""
    context: Any = ssl.SSLContext
    context.set_default_verify_paths = lambda _context: None
    try:
        import aiohttp  # noqa: F401, PLC0415 - see the module
    finally:
        del context.set_default_verify_paths


def _load_structlog() -> None:
    modules: dict[str, Any] = sys.modules
    is_absent = UNSEEN not in modules
    if is_absent:
        modules[UNSEEN] = None  # the import system treats this as a missing module
    try:
        import structlog.dev  # noqa: F401, PLC0415 - imports structlog while rich is hidden
    finally:
        if is_absent:
            del modules[UNSEEN]


_load_structlog()
