"""hubctl config: the contexts of kubeconfig files, as kubectl stores them.

Each change goes into the file that holds the entry, as in kubectl, and atomically.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from hubctl.auth.kubeconfig import KubeconfigFiles, context_names, load
from hubctl.client.connection import root_option
from hubctl.errors import CommandError
from hubctl.output.files import PrivateFile
from hubctl.output.formats import OutputFormat, output_option
from hubctl.output.tables import table

Document = dict[str, Any]


def choose_context(files: KubeconfigFiles, name: str) -> None:
    """Set the current context. Raises CommandError."""
    _check_known(files, name)
    holder = next((path for path, document in files.documents.items() if document.get("current-context")), files.first)
    _edit(holder, lambda document: {**document, "current-context": name})


def put_context(files: KubeconfigFiles, name: str, changes: dict[str, str]) -> bool:
    """Create a context, or change it in its file; return whether it is new. Raises CommandError."""
    is_new = _holder(files, name) is None

    def change(contexts: list[Document]) -> list[Document]:
        if is_new:
            return [*contexts, {"name": name, "context": _changed({}, changes)}]
        return [
            {**each, "context": _changed(each.get("context") or {}, changes)} if each.get("name") == name else each
            for each in contexts
        ]

    _edit_contexts(files, name, change)
    return is_new


def move_context(files: KubeconfigFiles, name: str, new: str) -> None:
    """Rename a context; it stays the current one if it is. Raises CommandError."""
    _check_known(files, name)
    if new in files.contexts:
        raise CommandError(f'there is a context "{new}" already', code=2)
    was_current = files.current == name
    _edit_contexts(files, name, lambda all_: [{**each, "name": new} if each.get("name") == name else each for each in all_])
    if was_current:
        choose_context(KubeconfigFiles(files.paths), new)


def remove_context(files: KubeconfigFiles, name: str) -> None:
    """Delete a context; its cluster and user stay. Raises CommandError."""
    _check_known(files, name)
    _edit_contexts(files, name, lambda contexts: [each for each in contexts if each.get("name") != name])


def _edit_contexts(files: KubeconfigFiles, name: str, change: Callable[[list[Document]], list[Document]]) -> None:
    """Change the contexts of the file that has this one, or of the first file."""
    holder = _holder(files, name) or files.first
    _edit(holder, lambda document: {**document, "contexts": change(list(document.get("contexts") or ()))})


def _changed(context: Document, changes: dict[str, str]) -> Document:
    return {key: value for key, value in {**context, **changes}.items() if value != ""}


def _check_known(files: KubeconfigFiles, name: str) -> None:
    if name not in files.contexts:
        known = ", ".join(files.contexts) or "none"
        raise CommandError(f'there is no context "{name}": there is {known}', reason="NotFound")


def _holder(files: KubeconfigFiles, name: str) -> Path | None:
    """The first file with the context."""
    for path, document in files.documents.items():
        if any(entry.get("name") == name for entry in document.get("contexts") or ()):
            return path
    return None


def _edit(path: Path, change: Callable[[Document], Document]) -> None:
    """Read the file again under its lock and replace it, following a symbolic link."""
    from hubctl.output.printers import as_yaml  # noqa: PLC0415 - the form in which it is written

    target = path.resolve()
    with _locked(target):
        content = as_yaml(change(load(target)))
        mode = target.stat().st_mode
        with PrivateFile(target) as file:
            file.write(content.encode())
        target.chmod(mode)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Kubectl's lock: a file beside it. Raises CommandError when another process holds it."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise CommandError(f"{path} is being changed by another program: if there is none, remove {lock}") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be changed: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


SECRET = frozenset(("client-key-data", "token", "password", "client-certificate-data", "certificate-authority-data"))
PARTS_SHOWN = ("cluster", "user", "namespace")
REDACTED, OMITTED = "REDACTED", "DATA+OMITTED"

_FILE = click.option("--kubeconfig", metavar="FILE", help="The kubeconfig file to read and change. Default: the current ones.")


def _files(context: click.Context, kubeconfig: str | None) -> KubeconfigFiles:
    return KubeconfigFiles.chosen(kubeconfig or root_option(context, "kubeconfig"))


@click.group()
def config() -> None:
    """Show and change the contexts of the kubeconfig. A context selects the hub and the user.

    The files are those of --kubeconfig, else of $HUBCTL_KUBECONFIG, else of $KUBECONFIG (a list is merged as by kubectl),
    else the admin.kubeconfig of a hub on this machine. A change is written to the file that contains the changed entry.

    \b
    Examples:
      hubctl config get-contexts
      hubctl config use-context berlin
      hubctl --context paris get clusters
    """


@config.command("get-contexts")
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=context_names)
@click.option(
    "-o", "--output", type=click.Choice(("table", "name")), default="table", help="Output format; name prints only names."
)
@click.option("--no-headers", is_flag=True, help="Omit the column headers.")
@_FILE
@click.pass_context
def get_contexts(context: click.Context, names: tuple[str, ...], output: str, kubeconfig: str, *, no_headers: bool) -> None:
    """List the contexts; * marks the current one.

    \b
    Examples:
      hubctl config get-contexts
      hubctl config get-contexts -o name
    """
    files = _files(context, kubeconfig)
    missing = [name for name in names if name not in files.contexts]
    found = {name: entry for name, entry in sorted(files.contexts.items()) if not names or name in names}
    if output == "name":
        for name in found:
            click.echo(name)
    else:
        rows = [
            ["*" if name == files.current else "", name, *(str(entry.get(part) or "") for part in PARTS_SHOWN)]
            for name, entry in found.items()
        ]
        lines = table(("Current", "Name", "Cluster", "AuthInfo", "Namespace"), rows)
        for line in lines[1:] if no_headers else lines:
            click.echo(line)
    if missing:
        raise CommandError(f'there is no context "{missing[0]}"', reason="NotFound")


@config.command("current-context")
@_FILE
@click.pass_context
def current_context(context: click.Context, kubeconfig: str | None) -> None:
    """Show the current context.

    \b
    Examples:
      hubctl config current-context
    """
    current = _files(context, kubeconfig).current
    if not current:
        raise CommandError("no context is the current one: choose one with `hubctl config use-context NAME`")
    click.echo(current)


@config.command("use-context")
@click.argument("name", shell_complete=context_names)
@_FILE
@click.pass_context
def use_context(context: click.Context, name: str, kubeconfig: str | None) -> None:
    """Set the current context.

    \b
    Examples:
      hubctl config use-context berlin
    """
    choose_context(_files(context, kubeconfig), name)
    click.echo(f'switched to context "{name}"')


@config.command("set-context")
@click.argument("name", required=False, shell_complete=context_names)
@click.option("--current", is_flag=True, help="Change the current context.")
@click.option("--cluster", metavar="NAME", help="Cluster of the context: an entry of `clusters`.")
@click.option("--user", metavar="NAME", help="User of the context: an entry of `users`.")
@click.option("--namespace", metavar="NAME", help='Namespace of the context; "" removes it.')
@_FILE
@click.pass_context
def set_context(context: click.Context, /, name: str, kubeconfig: str, *, current: bool, **changes: str | None) -> None:
    """Create or change a context.

    \b
    Examples:
      hubctl config set-context berlin --cluster berlin --user admin
      hubctl config set-context --current --user ann
    """
    files = _files(context, kubeconfig)
    if bool(name) == current:
        raise CommandError("give a NAME or --current", code=2)
    chosen = name or files.current
    if not chosen:
        raise CommandError("no context is the current one", code=2)
    new = put_context(files, chosen, {key: value for key, value in changes.items() if value is not None})
    click.echo(f'context "{chosen}" {"created" if new else "modified"}')


@config.command("rename-context")
@click.argument("name", shell_complete=context_names)
@click.argument("new")
@_FILE
@click.pass_context
def rename_context(context: click.Context, name: str, new: str, kubeconfig: str | None) -> None:
    """Rename a context.

    \b
    Examples:
      hubctl config rename-context muster berlin
    """
    move_context(_files(context, kubeconfig), name, new)
    click.echo(f'context "{name}" renamed to "{new}"')


@config.command("delete-context")
@click.argument("name", shell_complete=context_names)
@_FILE
@click.pass_context
def delete_context(context: click.Context, name: str, kubeconfig: str | None) -> None:
    """Delete a context. Its cluster and its user stay in the file.

    \b
    Examples:
      hubctl config delete-context berlin
    """
    files = _files(context, kubeconfig)
    remove_context(files, name)
    click.echo(f'context "{name}" deleted')
    if name == files.current:
        click.echo("warning: it was the current one: `hubctl config use-context NAME` chooses another", err=True)


@config.command("view")
@click.option("--minify", is_flag=True, help="Only the current context (or --context), with its cluster and user.")
@click.option("--raw", is_flag=True, help="Also show keys and certificates.")
@output_option(note="Output format (default: YAML):")
@_FILE
@click.pass_context
def view(context: click.Context, *, minify: bool, raw: bool, output: OutputFormat, kubeconfig: str | None) -> None:
    """Show the merged kubeconfig. Keys, tokens and certificates are omitted unless you set --raw.

    \b
    Examples:
      hubctl config view
      hubctl config view --minify -o jsonpath='{.clusters[0].cluster.server}'
      hubctl config view --minify --raw > berlin.kubeconfig
    """
    from hubctl.client.resources import ResourceKind  # noqa: PLC0415 - likewise
    from hubctl.output.printers import TableLayout, printer_of  # noqa: PLC0415 - the other commands do not wait for it

    files = _files(context, kubeconfig)
    whole = _minified(files, root_option(context, "context_name")) if minify else files.merged
    if output.is_table and output.given:
        raise CommandError("a kubeconfig has no table: -o yaml, json or jsonpath=...", code=2)
    form = output if output.given else OutputFormat("yaml", given=True)
    look = TableLayout(ResourceKind((), "v1", "configs", "Config", "kubeconfig"), form)
    printer_of(look).first(whole if raw else {**whole, **_redacted(whole)})


def _minified(files: KubeconfigFiles, chosen: str | None) -> dict[str, Any]:
    name = chosen or files.current
    context = files.contexts.get(name)
    if context is None:
        raise CommandError(f'there is no context "{name}"', reason="NotFound")
    wanted = {"contexts": name, "clusters": context.get("cluster"), "users": context.get("user")}
    parts = {part: [entry for entry in files.merged[part] if entry["name"] == only] for part, only in wanted.items()}
    return {**files.merged, **parts, "current-context": name}


def _redacted(whole: dict[str, Any]) -> dict[str, Any]:
    return {
        part: [{**entry, inner: {key: _shown(key, value) for key, value in entry[inner].items()}} for entry in whole[part]]
        for part, inner in (("clusters", "cluster"), ("users", "user"))
    }


def _shown(key: str, value: Any) -> Any:
    if key in SECRET:
        return OMITTED if key.endswith("-data") and key != "client-key-data" else REDACTED
    if key == "exec" and isinstance(value, dict) and value.get("env"):
        return {**value, "env": [{**pair, "value": REDACTED} for pair in value["env"]]}
    return REDACTED if key == "auth-provider" else value
