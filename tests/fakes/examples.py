"""Every command of hubctl, and how its help shows it being typed."""

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile

import click

from hub.cli.__main__ import hubctl
from hub.cli.reference import commands

ALL = [(" ".join(words), command) for words, command in commands(hubctl) if words]
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
