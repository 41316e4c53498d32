"""One command for several names."""

from collections.abc import Callable, Sequence

import click

from hub.cli.failures import FAILED, CommandError


def each(names: Sequence[str], act: Callable[[str], None]) -> None:
    """Acts on every name, also when one fails. Raises CommandError at the end, with their exit code if all failed alike."""
    failed: list[CommandError] = []
    for name in names:
        try:
            act(name)
        except CommandError as error:
            failed.append(error)
            if len(names) > 1:
                click.echo(f"error: {error.sentence}", err=True)
    if len(names) > 1 and failed:
        codes = {error.code for error in failed}
        raise CommandError(f"{len(failed)} of {len(names)} failed", code=codes.pop() if len(codes) == 1 else FAILED)
    if failed:
        raise failed[0]
