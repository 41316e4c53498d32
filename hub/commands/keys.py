"""Runs `hub keys create` and `hub keys next`."""

from pathlib import Path

import click

from hub.replica.installation import lifetimes_of
from hub.replica.keys import create_keys, create_next_authority
from hub.settings import load
from machinery.errors import MusterError
from machinery.runtime.clock import SystemClock

MADE, FAILED = 0, 1


def run(folder: Path, config: Path | None) -> int:
    """Run `hub keys create` and return the exit code. Errors go to standard error."""
    try:
        create_keys(folder, lifetimes_of(load({}, config)), SystemClock().now())
    except MusterError as error:
        click.echo(f"hub: {error}", err=True)
        return FAILED
    click.echo(f"{folder} has the keys of a new hub: give the same to all its replicas with --keys-dir, and keep a copy")
    return MADE


def run_next(folder: Path, config: Path | None) -> int:
    """Run `hub keys next` and return the exit code."""
    try:
        certificate, key = create_next_authority(folder, lifetimes_of(load({}, config)), SystemClock().now())
    except MusterError as error:
        click.echo(f"hub: {error}", err=True)
        return FAILED
    click.echo(f"{certificate} and {key} are the hub's next CA: put both beside the keys of every replica, and keep a copy")
    return MADE
