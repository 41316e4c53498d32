"""One command for several names."""

from collections.abc import Callable

import click

from hub.cli.failures import CommandError


def each(names: tuple[str, ...], act: Callable[[str], None]) -> None:
    """Acts on every name, also when one fails. Raises CommandError at the end."""
    failed: list[CommandError] = []
    for name in names:
        try:
            act(name)
        except CommandError as error:
            failed.append(error)
            if len(names) > 1:
                click.echo(f"error: {error.sentence}", err=True)
    if len(names) > 1 and failed:
        raise CommandError(f"{len(failed)} of {len(names)} failed")
    if failed:
        raise failed[0]
