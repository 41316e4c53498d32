"""hubctl as a plug-in of kubectl: `kubectl hub ...`, and the words that kubectl offers after it."""

import sys
from collections.abc import Sequence

import click
from click.shell_completion import ShellComplete

from hubctl.__main__ import hubctl
from hubctl.__main__ import main as run_hubctl

DEFAULT, NO_FILES = 0, 4
"""What kubectl is told to do beside the words: complete files too, or not."""


def main() -> None:
    """The program `kubectl-hub`."""
    run_hubctl("kubectl hub")


def complete() -> None:
    """The program `kubectl_complete-hub`: its arguments are the words so far, the last of them unfinished."""
    for line in offered(sys.argv[1:]):
        click.echo(line)


def offered(words: Sequence[str]) -> list[str]:
    """A word to a line, with what it means after a tab; last of all what kubectl is to do."""
    *before, unfinished = words or ("",)
    items = ShellComplete(hubctl, {}, "hubctl", "").get_completions(list(before), unfinished)
    files = any(item.type in ("file", "dir") for item in items)
    lines = [f"{item.value}\t{item.help}" if item.help else str(item.value) for item in items if item.type == "plain"]
    return [*lines, f":{DEFAULT if files else NO_FILES}"]
