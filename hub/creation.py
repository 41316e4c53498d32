"""The program `hub keys create`: from the settings to a folder with the keys of a new hub."""

from pathlib import Path

import click

from hub.installation import lifetimes_of
from hub.keys import create_keys
from hub.settings import SettingsError, load
from machinery.clock import SystemClock
from machinery.errors import MusterError

MADE, FAILED = 0, 1


def run(folder: Path, config: Path | None) -> int:
    """The exit code; what is wrong stands on standard error."""
    try:
        create_keys(folder, lifetimes_of(load({}, config)), SystemClock().now())
    except (SettingsError, MusterError) as error:
        click.echo(f"hub: {error}", err=True)
        return FAILED
    click.echo(f"{folder} has the keys of a new hub: give the same to all its replicas with --keys-dir, and keep a copy")
    return MADE
