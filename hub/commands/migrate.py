"""Runs `hub migrate`."""

import os

import click

from hub.settings import HubSettings
from hub.store.engine.engine import parse_url
from hub.store.engine.file_lock import database_lock
from hub.store.migrate import HEAD, Schema, pending
from hub.store.migrate_url import migrate_database, schema_at
from machinery.observability import logs

DONE, TO_DO = 0, 1
PRIVATE = 0o077


def run(settings: HubSettings, *, check: bool) -> int:
    """Print the result and return the exit code. Raises MusterError."""
    url = parse_url(settings.store_url)
    if check:
        return _check(schema_at(url))
    logs.configure(settings.log_level, settings.log_format)
    os.umask(PRIVATE)
    before = schema_at(url)
    with database_lock(settings.store_url):
        migrate_database(url)
    click.echo(_done(before, schema_at(url)))
    return DONE


def _check(schema: Schema) -> int:
    schema.check()
    if schema.is_current or schema.is_newer:
        click.echo(_known(schema))
        return DONE
    click.echo(f"the database {_words(schema)}; to run, in this order:")
    for version, about in pending(schema.version):
        click.echo(f"  {version}  {about}")
    return TO_DO


def _done(before: Schema, after: Schema) -> str:
    if before.version == after.version:
        return _known(after)
    return f'the database {_words(before)} and now has schema "{after.version}"'


def _known(schema: Schema) -> str:
    if schema.is_newer:
        return f'the database has schema "{schema.version}", newer than this release\'s "{HEAD}", which can run on it'
    return f'the database has schema "{schema.version}", which is this release\'s: nothing is to do'


def _words(schema: Schema) -> str:
    return "was empty" if schema.version is None else f'had schema "{schema.version}"'
