"""hubctl run in this process, its commands, and the command lines in their help."""

import asyncio
import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from hubctl.__main__ import hubctl as program, run
from hubctl.reference import commands


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def hubctl(*arguments: str, given: str = "", terminal: bool = False) -> Said:
    """Runs a command; `given` is its standard input. `terminal`: it is typed there, and errors are shown there."""
    out, err, before = _stream(), _stream(terminal=terminal), sys.stdin
    sys.stdin = _stream(given, terminal=terminal)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run(arguments)
    except SystemExit as ending:
        code = int(ending.code or 0)
    finally:
        sys.stdin = before
    return Said(code, *(each.buffer.getvalue().decode() for each in (out, err)))


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def _stream(text: str = "", *, terminal: bool = False) -> Any:
    """As a process has them: some output is bytes."""
    return (_Terminal if terminal else io.TextIOWrapper)(io.BytesIO(text.encode()), "utf-8", write_through=True)


async def hubctl_at(kubeconfig: Path, *arguments: str, given: str = "", terminal: bool = False) -> Said:
    """The same beside a running loop, at the hub of a kubeconfig. One at a time: it has the process's standard output."""
    return await asyncio.to_thread(hubctl, "--kubeconfig", str(kubeconfig), *arguments, given=given, terminal=terminal)


ALL = [(" ".join(words), command) for words, command in commands(program) if words]
LEAVES = [(words, command) for words, command in ALL if not isinstance(command, click.Group)]
EXAMPLE = re.compile(r"^\s+(?:\S+=\S+ )*hubctl (.*)$", re.MULTILINE)


def typed(command: click.Command) -> list[list[str]]:
    """The command lines of its help, each until a pipe, a redirection or the end."""
    text = (command.help or "").replace("\\\n", " ")
    return [list(takewhile(lambda word: set(word) - set("|<>;&()"), words(line))) for line in EXAMPLE.findall(text)]


def words(line: str) -> Iterator[str]:
    lexer = shlex.shlex(re.split(r"\s{2,}\(", line)[0], posix=True, punctuation_chars="|<>;&")
    lexer.whitespace_split = True
    return lexer
