"""Options shared by several commands, and their types."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, TypeVar

import click

from hubctl.errors import UsageError
from machinery.durations import parse_duration
from machinery.meta.timestamps import format_micro_time

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]


class Duration(click.ParamType[timedelta]):
    """A duration such as 500ms, 60s, 1h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        try:
            return value if isinstance(value, timedelta) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def text_option(*words: str) -> Decorator:
    """Return an option for a text; the default is empty. `words`: its names, its placeholder and its help."""
    *names, metavar, text = words
    return click.option(*names, default="", metavar=metavar, help=text)


DURATION = Duration()
SELECTOR = text_option("-l", "--selector", "SELECTOR", "Select objects by labels.")
FIELDS = text_option("--field-selector", "SELECTOR", "Select objects by fields.")
EVERYTHING = click.option("--all", "everything", is_flag=True, help="Select all objects of the kind.")
FILES = click.option(
    "-f", "--filename", "files", multiple=True, metavar="FILE", help="Select objects by manifests or `-o name` lines; -: stdin."
)
NAMESPACE = text_option("-n", "--namespace", "CLUSTER", "For add-ons and leases: the namespace of the cluster.")
DRY_RUN = click.option(
    "--dry-run",
    is_flag=False,
    flag_value="server",
    type=click.Choice(("server",)),
    help="Let the hub check, and change nothing.",
)
YES = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
CHANGE = (YES, DRY_RUN)

IMPERSONATION = (
    click.option("--as", "as_user", metavar="USER", help="Act as this user (impersonation)."),
    click.option("--as-group", "as_groups", multiple=True, metavar="GROUP", help="Act as a member of this group. Repeatable."),
    click.option("--as-uid", metavar="UID", help="Act as the user with this UID."),
)
CONNECTION = ("kubeconfig", "context_name", "as_user", "as_groups", "as_uid")
"""Parameters of the options that all commands with a client have."""


def with_options(*options: Decorator) -> Callable[[F], F]:
    """Return a decorator that adds options to a command. The help lists them in this order."""

    def decorate(command: F) -> F:
        decorated: F = reduce(lambda inner, option: option(inner), reversed(options), command)
        return decorated

    return decorate


def read_key_values(option: str, noun: str, texts: Iterable[str]) -> dict[str, str]:
    """Parse the pairs KEY=VALUE of an option. Raises CommandError, whose message names `option` and `noun`."""
    pairs = {}
    for text in texts:
        key, equals, pairs[key] = text.partition("=")
        if not key or not equals:
            raise UsageError(f'{option} "{text}" is not valid for a {noun}: write KEY=VALUE')
    return pairs


TIME_FORMS = (
    "write a time such as 2026-11-01T12:00Z or 2026-11-01 12:00 (local time), a duration before now such as 2h, or a revision"
)


def moment(text: str) -> str:
    """Return a time, duration or revision in the hub's format; "": now. A time without a zone is local. Raises CommandError."""
    text = text.strip()
    if text in ("", "now"):
        return ""
    if text.isascii() and text.isdecimal():
        return text
    with suppress(ValueError):
        parse_duration(text.removeprefix("-"))
        return f"-{text.removeprefix('-')}"
    try:
        return format_micro_time(datetime.fromisoformat(text).astimezone(UTC))
    except (ValueError, OverflowError):
        raise UsageError(f'"{text}" is not a time: {TIME_FORMS}') from None
