"""hubctl as a plug-in of kubectl: `kubectl hub ...`, and its completion."""

import sys
from collections.abc import Sequence

import click
from click.shell_completion import ShellComplete

from hubctl.__main__ import hubctl, main as run_hubctl

DEFAULT, NO_FILES = 0, 4
"""Directives for kubectl: DEFAULT also completes file names, NO_FILES does not."""


def main() -> None:
    """Run hubctl as the program `kubectl-hub`."""
    run_hubctl("kubectl hub")


def complete() -> None:
    """Run the program `kubectl_complete-hub`. Its arguments are the words of the command line; the last word is incomplete."""
    for line in offered(sys.argv[1:]):
        click.echo(line)


def offered(words: Sequence[str]) -> list[str]:
    """Return the lines for kubectl: one completion per line, with its help after a tab; the last line is the directive."""
    *before, unfinished = words or ("",)
    items = ShellComplete(hubctl, {}, "hubctl", "").get_completions(list(before), unfinished)
    files = any(item.type in ("file", "dir") for item in items)
    lines = [f"{item.value}\t{item.help}" if item.help else str(item.value) for item in items if item.type == "plain"]
    return [*lines, f":{DEFAULT if files else NO_FILES}"]
