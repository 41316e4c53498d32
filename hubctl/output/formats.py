"""The option -o: output formats, named as in kubectl."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from hubctl.errors import closest
from hubctl.files import read_text

F = TypeVar("F", bound=Callable[..., Any])

TABLES = ("table", "wide")
DOCUMENTS = ("json", "yaml", "name")
TEMPLATES = ("jsonpath", "jsonpath-as-json", "jsonpath-file")
COLUMNS = ("custom-columns", "custom-columns-file")
FORMS = (*TABLES, *DOCUMENTS, *TEMPLATES, *COLUMNS, "csv")
CRL_FORMATS = ("pem", "der", "text")
WITH_ARGUMENT = frozenset((*TEMPLATES, *COLUMNS))
EXAMPLES = {"jsonpath": "'{.metadata.name}'", "jsonpath-as-json": "'{.status}'", "custom-columns": "NAME:.metadata.name"}
HELP = "wide, json, yaml, name, csv, jsonpath=TEMPLATE, custom-columns=TITLE:.path,...; see `hubctl get --help`."


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """An output format and its argument after the equals sign. `given`: the format is chosen with -o, not a default."""

    name: str = "table"
    argument: str = ""
    given: bool = False

    @property
    def is_table(self) -> bool:
        """Whether the hub creates the cells: for tables, and for csv without user-defined columns."""
        return self.name in TABLES or (self.name == "csv" and not self.argument)


class FormatType(click.ParamType[OutputFormat]):
    """Parses formats such as `json` and `jsonpath=...`. `more`: formats that only this command has."""

    name = "form"

    def __init__(self, *more: str) -> None:
        self._known = (*FORMS, *more)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> OutputFormat:
        if isinstance(value, OutputFormat):
            return value
        name, equals, argument = str(value).partition("=")
        if name not in self._known:
            meant = closest(name, self._known)
            self.fail(f'there is no format "{name}"{meant or ": use one of " + ", ".join(self._known)}', param, ctx)
        if name in WITH_ARGUMENT and not argument:
            self.fail(f"{name} needs an argument, as in -o {name}={EXAMPLES.get(name, 'FILE')}", param, ctx)
        if equals and name not in WITH_ARGUMENT and name != "csv":
            self.fail(f"{name} has no argument", param, ctx)
        return OutputFormat(name, argument, given=True)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        words = (f"{name}=" if name in WITH_ARGUMENT else name for name in self._known)
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def output_option(*more: str, note: str = "") -> Callable[[F], F]:
    """Return the option -o, whose value `output` is an OutputFormat. `more`: further formats. `note`: start of the help."""
    help_text = f"{note} {HELP}" if note else f"Output format: {HELP}"
    return click.option(
        "-o", "--output", type=FormatType(*more), default=OutputFormat(), show_default=False, metavar="FORM", help=help_text
    )


def argument_of(form: OutputFormat) -> str:
    """Return the template or the columns. If the format names a file, read them from the file. Raises CommandError."""
    return read_text(form.argument) if form.name.endswith("-file") else form.argument
