"""The program `hub audit verify`: from the settings to the database or file, and from the reports to lines and an exit code."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from hub.audit.verify import Noted, Report, breaches, parse_noted, verify_lines, verify_store
from hub.settings import Settings, SettingsError, load
from hub.store import SqlStore
from machinery.errors import MusterError, UnavailableError

INTACT, BROKEN, UNREADABLE = 0, 1, 2
SHOWN = 100


def database_url(settings: Settings) -> str:
    """The database of a hub with these settings."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    return f"sqlite:///{settings.data_dir / 'hub.db'}"


def run(config: Path | None, data_dir: Path | None, file: Path | None, noted: Sequence[str]) -> int:
    """The exit code; what was found stands on standard output, what kept it from looking on standard error."""
    try:
        reports = _reports(config, data_dir, file, parse_noted(noted))
    except (SettingsError, MusterError, OSError) as error:
        click.echo(f"hub: {error}", err=True)
        return UNREADABLE
    for report in reports:
        click.echo(str(report))
    found = list(breaches(reports))
    for breach in found[:SHOWN]:
        click.echo(f"  {breach}")
    if len(found) > SHOWN:
        click.echo(f"  and {len(found) - SHOWN} more places")
    if not reports:
        click.echo("there are no audit records")
    return BROKEN if found else INTACT


def _reports(config: Path | None, data_dir: Path | None, file: Path | None, noted: Noted) -> Sequence[Report]:
    if file is not None:
        with file.open("rb") as lines:
            return verify_lines(lines, noted)
    settings = load({"data_dir": data_dir}, config)
    if settings.database_url is None and not (settings.data_dir / "hub.db").exists():
        raise UnavailableError(f"there is no hub's database in {settings.data_dir}: give --data-dir or --config")
    return asyncio.run(_verified(database_url(settings), noted))


async def _verified(url: str, noted: Noted) -> Sequence[Report]:
    """Only reads: a schema that is older or newer is left alone."""
    store = SqlStore(url)
    try:
        return await verify_store(store, noted)
    finally:
        await store.close()
