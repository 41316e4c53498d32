"""Runs `hub migrate`."""

import ctypes
import os
import signal
import sys

import click

from hub.settings import HubSettings
from hub.store.engine.engine import parse_url
from hub.store.engine.file_lock import database_lock
from hub.store.migrate import HEAD, Schema, migrate_database, pending, schema_at
from machinery.observability import logs
from machinery.runtime.directory import DataDirectory

DONE, TO_DO = 0, 1
PRIVATE = 0o077
PR_SET_PDEATHSIG = 1  # of prctl(2)


def run(settings: HubSettings, *, check: bool) -> int:
    """Migrate (with `check`, only list migrations), print the result and return the exit code. Raises MusterError."""
    url = parse_url(settings.store_url)
    before = schema_at(url)
    was = "was empty" if before.version is None else f'had schema "{before.version}"'
    if not check:
        logs.configure(settings.log_level, settings.log_format)
        os.umask(PRIVATE)
        with database_lock(settings.store_url):
            migrate_database(url)
        after = schema_at(url)
        is_same = before.version == after.version
        click.echo(_current(after) if is_same else f'the database {was} and now has schema "{after.version}"')
        return DONE
    before.check()
    if before.is_current or before.is_newer:
        click.echo(_current(before))
        return DONE
    click.echo(f"the database {was}; pending migrations, in this order:")
    for version, about in pending(before.version):
        click.echo(f"  {version}  {about}")
    return TO_DO


def create_database(settings: HubSettings, parent: int) -> None:
    """Create the data directory and its database, and hold the locks of a hub meanwhile. Raises MusterError, OSError.

    On Linux this process ends when its parent process ends, so that the next hub can have the locks.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
    os.umask(PRIVATE)
    with DataDirectory(settings.data_dir, "hub"), database_lock(settings.store_url):
        migrate_database(parse_url(settings.store_url))


def _current(schema: Schema) -> str:
    if schema.is_newer:
        return f'the database has schema "{schema.version}", newer than this release\'s "{HEAD}", which can run on it'
    return f'the database has schema "{schema.version}", which is the one of this release: there is nothing to do'
