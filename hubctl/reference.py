"""Generates docs/reference/hubctl from the commands' help: `python -m hubctl.reference FOLDER`. --check only compares."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hubctl.__main__ import COMMANDS, hubctl
from hubctl.errors import DONE, FAILED, INTERRUPTED, MISUSED, NOT_FOUND, NOT_WELL, TIMED_OUT, UNREACHABLE
from hubctl.options import CONNECTION

FOLDER = Path("docs/reference/hubctl")
INDEX = "README.md"
GENERATED = "<!-- Made by `make reference` from what hubctl's --help says: change it there. -->"
COMMON_OPTIONS = ("help", *CONNECTION)
"""Options that only the index lists."""
CODES = (
    (DONE, "done"),
    (FAILED, "the hub rejected the request, or the command failed"),
    (MISUSED, "usage error, or an invalid kubeconfig"),
    (NOT_FOUND, "an object does not exist"),
    (TIMED_OUT, "timeout"),
    (UNREACHABLE, "the hub is unreachable or does not answer"),
    (NOT_WELL, "`hubctl diagnose` found a problem"),
    (INTERRUPTED, "interrupted (Ctrl-C)"),
)
USERS = (
    ("client-certificate", "used for TLS client authentication; with a token both are sent"),
    ("token", "a ServiceAccount token of the hub, or a bootstrap token; exchange any other token first (`hubctl login`)"),
    ("tokenFile", "takes precedence over `token`; read again for each connection, so the file can be renewed at any time"),
    ("exec", "used if none of these is set: `client.authentication.k8s.io/v1` and `v1beta1`, for a token or a certificate"),
    (
        "as, as-groups, as-uid, as-user-extra",
        "impersonation: requests run as this identity; `--as...` options override the fields",
    ),
    ("username, password, auth-provider", "rejected"),
)


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and all its subcommands, each with its words. Hidden commands are omitted."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=" ".join(("hubctl", *words)))
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from commands(found, (*words, name))


def pages() -> dict[str, str]:
    """Return the text of each page by file name."""
    made = {INDEX: _index()}
    for name in COMMANDS:
        found = hubctl.get_command(click.Context(hubctl), name)
        assert found is not None  # noqa: S101 - it is in the table
        if not found.hidden:
            made[f"{name}.md"] = "\n".join([GENERATED, "", *_page(found, (name,))])
    return made


def drift(folder: Path) -> list[str]:
    """Return the names of pages that are missing or outdated in the folder, and of files that are not generated."""
    made = pages()
    there = {path.name: path.read_text() for path in folder.glob("*.md")}
    return sorted(name for name in {*made, *there} if made.get(name) != there.get(name))


def write(folder: Path) -> None:
    """Write all pages, and delete pages of removed commands."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for path in folder.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text)


def _index() -> str:
    rows = [f"| [`hubctl {name}`]({name}.md) | {line} |" for name, (_, line) in COMMANDS.items()]
    lines = [
        *(GENERATED, "", "# hubctl", ""),
        "All commands with their options, as in `hubctl COMMAND --help`. `kubectl hub COMMAND` is equivalent.",
        *("", "| command | |", "|---|---|", *rows, "", "## Global options", ""),
        *_options(hubctl, click.Context(hubctl)),
        *("", "## Exit codes", "", "| code | |", "|---|---|", *(f"| {code} | {words} |" for code, words in CODES)),
        "",
        "With several objects, hubctl tries all of them; if they fail for different reasons, the code is 1. See",
        "`diagnose` and `diff` for their codes.",
        *("", "## Authentication", "", "hubctl uses the user of the kubeconfig's context, like kubectl:", ""),
        *("| field | |", "|---|---|", *(f"| `{name.replace(', ', '`, `')}` | {words} |" for name, words in USERS)),
        "",
        "hubctl runs an `exec` plug-in once per command, again after `expirationTimestamp`, and again if the hub rejects the",
        "credential; watches continue. The hub's certificate is always verified: `insecure-skip-tls-verify` without a CA is",
        "rejected. `tls-server-name` sets the name to verify.",
        "",
        "hubctl connects through the HTTP proxy in `proxy-url`, else through that of the environment. A proxy is",
        "`http://[USER:PASSWORD@]HOST:PORT`. The environment's never applies to a loopback address.",
        "",
        "## Environment",
        "",
        "| variable | |",
        "|---|---|",
        "| `HUBCTL_KUBECONFIG`, `KUBECONFIG` | kubeconfig files, as for kubectl; the first variable that is set is used |",
        "| `HTTPS_PROXY`, `https_proxy` | the HTTP proxy, if the kubeconfig has no `proxy-url` |",
        "| `NO_PROXY`, `no_proxy` | servers without the proxy: addresses, CIDRs, domains (with subdomains), `*` |",
        "| `NO_COLOR` | any value disables colors; output that is not a terminal has none |",
    ]
    return "\n".join(lines) + "\n"


def _page(command: click.Command, words: tuple[str, ...]) -> Iterator[str]:
    for below, each in commands(command, words):
        context = click.Context(each, info_name=" ".join(("hubctl", *below)))
        yield f"{'#' * min(len(below), 3)} hubctl {' '.join(below)}"
        yield from ("", "```", " ".join(("hubctl", *below, *each.collect_usage_pieces(context))), "```", "")
        yield from _described(each)
        options = list(_options(each, context))
        if options:
            yield from (*options, "")


def _described(command: click.Command) -> Iterator[str]:
    """Yield the help as paragraphs. Blocks after \\b, which click does not wrap, stay verbatim."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            title, *lines = paragraph.removeprefix("\b\n").splitlines()
            yield from (title, "", "```", *inspect.cleandoc("\n" + "\n".join(lines)).splitlines(), "```", "")
        else:
            yield from (paragraph.replace("\n", " "), "")


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    left_out = COMMON_OPTIONS if command is not hubctl else ()
    own = (each for each in command.get_params(context) if each.name not in left_out)
    records = [found for each in own if (found := each.get_help_record(context)) and found[1]]
    if records:
        yield from ("| option | |", "|---|---|")
        yield from (f"| `{_cell(names)}` | {_cell(text)} |" for names, text in records)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check print which pages differ. Return the exit code."""
    check = "--check" in arguments
    folder = next((Path(each) for each in arguments if not each.startswith("-")), FOLDER)
    if not check:
        write(folder)
        return DONE
    wrong = drift(folder)
    if wrong:
        click.echo(f"{folder} is not what hubctl's --help says: run make reference ({', '.join(wrong)})", err=True)
        return FAILED
    click.echo(f"{folder} is what hubctl's --help says")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
