"""hubctl config: the contexts of kubeconfig files, as kubectl stores them.

Each change is atomic, and is made in the file that contains the entry, as in kubectl.
"""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import click

from hubctl.auth.kubeconfig import Document, KubeconfigFiles, context_names, edit_kubeconfig, option_of
from hubctl.errors import CommandError, UsageError
from hubctl.output.formats import OutputFormat, output_option
from hubctl.output.tables import print_lines, table


def _check_known(files: KubeconfigFiles, name: str) -> None:
    if name not in files.contexts:
        known = ", ".join(files.contexts) or "none"
        raise CommandError(f'there is no context "{name}": there are {known}', reason="NotFound")


def _edit_contexts(files: KubeconfigFiles, name: str, change: Callable[[list[Document]], list[Document]]) -> None:
    """Change the contexts in the file that contains this context; if there is none, in the file for new entries."""
    edit_kubeconfig(
        files.holding("contexts", name), lambda document: {**document, "contexts": change(list(document.get("contexts") or ()))}
    )


def _set_current(files: KubeconfigFiles, name: str) -> None:
    edit_kubeconfig(files.holding("current-context"), lambda document: {**document, "current-context": name})


SECRET = frozenset(("client-key-data", "token", "password", "client-certificate-data", "certificate-authority-data"))
PARTS_SHOWN = ("cluster", "user", "namespace")
REDACTED, OMITTED = "REDACTED", "DATA+OMITTED"


def _on_files(command: Callable[..., None]) -> Callable[..., None]:
    """Add --kubeconfig to a command and pass it the kubeconfig files as its first argument."""

    @click.option("--kubeconfig", metavar="FILE", help="The kubeconfig file to read and change. Default: the current ones.")
    @click.pass_context
    def with_files(context: click.Context, /, kubeconfig: str | None, **arguments: Any) -> None:
        del kubeconfig  # option_of reads it, or the option before the command
        command(KubeconfigFiles.chosen(option_of(context, "kubeconfig")), **arguments)

    update_wrapper(with_files, command)  # click reads name, help and parameters of the command from this function
    return with_files


@click.group()
def config() -> None:
    """Show and change the contexts of the kubeconfig. A context selects the hub and the user.

    The files are those of --kubeconfig, else of $HUBCTL_KUBECONFIG, else of $KUBECONFIG (a list is merged as by kubectl), else
    the admin.kubeconfig of a hub on this machine, else ~/.kube/config. A command changes the file that contains the entry.

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
@_on_files
def get_contexts(files: KubeconfigFiles, names: tuple[str, ...], output: str, *, no_headers: bool) -> None:
    """List the contexts; * marks the current context.

    \b
    Examples:
      hubctl config get-contexts
      hubctl config get-contexts -o name
    """
    missing = [name for name in names if name not in files.contexts]
    found = {name: entry for name, entry in sorted(files.contexts.items()) if not names or name in names}
    if output == "name":
        print_lines(found)
    else:
        rows = [
            ["*" if name == files.current else "", name, *(str(entry.get(part) or "") for part in PARTS_SHOWN)]
            for name, entry in found.items()
        ]
        lines = table(("Current", "Name", "Cluster", "AuthInfo", "Namespace"), rows)
        print_lines(lines[1:] if no_headers else lines)
    if missing:
        raise CommandError(f'there is no context "{missing[0]}"', reason="NotFound")


@config.command("current-context")
@_on_files
def current_context(files: KubeconfigFiles) -> None:
    """Show the current context.

    \b
    Examples:
      hubctl config current-context
    """
    current = files.current
    if not current:
        raise CommandError("there is no current context: choose one with `hubctl config use-context NAME`")
    click.echo(current)


@config.command("use-context")
@click.argument("name", shell_complete=context_names)
@_on_files
def use_context(files: KubeconfigFiles, name: str) -> None:
    """Set the current context.

    \b
    Examples:
      hubctl config use-context berlin
    """
    _check_known(files, name)
    _set_current(files, name)
    click.echo(f'switched to context "{name}"')


@config.command("set-context")
@click.argument("name", required=False, shell_complete=context_names)
@click.option("--current", is_flag=True, help="Change the current context.")
@click.option("--cluster", metavar="NAME", help="Cluster of the context: an entry of `clusters`.")
@click.option("--user", metavar="NAME", help="User of the context: an entry of `users`.")
@click.option("--namespace", metavar="NAME", help='Namespace of the context; "" removes it.')
@_on_files
def set_context(files: KubeconfigFiles, name: str | None, *, current: bool, **changes: str | None) -> None:
    """Create or change a context.

    \b
    Examples:
      hubctl config set-context berlin --cluster berlin --user admin
      hubctl config set-context --current --user ann
    """
    if bool(name) == current:
        raise UsageError("give a NAME or --current")
    chosen = name or files.current
    if not chosen:
        raise UsageError("no context is the current one")
    is_new = chosen not in files.contexts

    def changed(entry: Document) -> Document:
        given = {key: value for key, value in changes.items() if value is not None}
        context = {key: value for key, value in {**(entry.get("context") or {}), **given}.items() if value != ""}
        return {**entry, "context": context}

    def change(contexts: list[Document]) -> list[Document]:
        known = [changed(each) if each.get("name") == chosen else each for each in contexts]
        return [*known, changed({"name": chosen})] if is_new else known

    _edit_contexts(files, chosen, change)
    click.echo(f'context "{chosen}" {"created" if is_new else "modified"}')


@config.command("rename-context")
@click.argument("name", shell_complete=context_names)
@click.argument("new")
@_on_files
def rename_context(files: KubeconfigFiles, name: str, new: str) -> None:
    """Rename a context.

    \b
    Examples:
      hubctl config rename-context muster berlin
    """
    _check_known(files, name)
    if new in files.contexts:
        raise UsageError(f'there is a context "{new}" already')
    is_current = files.current == name
    _edit_contexts(
        files, name, lambda contexts: [{**each, "name": new} if each.get("name") == name else each for each in contexts]
    )
    if is_current:
        _set_current(KubeconfigFiles(files.paths), new)
    click.echo(f'context "{name}" renamed to "{new}"')


@config.command("delete-context")
@click.argument("name", shell_complete=context_names)
@_on_files
def delete_context(files: KubeconfigFiles, name: str) -> None:
    """Delete a context. Its cluster and its user stay in the file.

    \b
    Examples:
      hubctl config delete-context berlin
    """
    _check_known(files, name)
    _edit_contexts(files, name, lambda contexts: [each for each in contexts if each.get("name") != name])
    click.echo(f'context "{name}" deleted')
    if name == files.current:
        click.echo("warning: it was the current one: `hubctl config use-context NAME` chooses another", err=True)


@config.command("view")
@click.option("--minify", is_flag=True, help="Only the current context (or --context), with its cluster and user.")
@click.option("--raw", is_flag=True, help="Also show keys and certificates.")
@output_option(note="Output format (default: YAML):")
@_on_files
def view(files: KubeconfigFiles, output: OutputFormat, *, minify: bool, raw: bool) -> None:
    """Show the merged kubeconfig. Keys, tokens and certificates are omitted unless you set --raw.

    \b
    Examples:
      hubctl config view
      hubctl config view --minify -o jsonpath='{.clusters[0].cluster.server}'
      hubctl config view --minify --raw > berlin.kubeconfig
    """
    from hubctl.client.resources import ResourceKind  # noqa: PLC0415 - likewise
    from hubctl.output.printers import PrintOptions, printer_of  # noqa: PLC0415 - the other commands do not wait for it

    document = files.merged
    if minify:
        name = option_of(click.get_current_context(), "context_name") or files.current
        context = files.contexts.get(name)
        if context is None:
            raise CommandError(f'there is no context "{name}"', reason="NotFound")
        wanted = {"contexts": name, "clusters": context.get("cluster"), "users": context.get("user")}
        parts = {part: [entry for entry in document[part] if entry["name"] == only] for part, only in wanted.items()}
        document = {**document, **parts, "current-context": name}
    if output.is_table and output.given:
        raise UsageError("a kubeconfig cannot be shown as a table: use -o yaml, json or jsonpath=...")
    form = output if output.given else OutputFormat("yaml", given=True)
    options = PrintOptions(ResourceKind((), "v1", "configs", "Config", "kubeconfig"), form)
    if not raw:
        for part, inner in (("clusters", "cluster"), ("users", "user")):
            document = {**document, part: [{**entry, inner: _redacted(entry[inner])} for entry in document[part]]}
    printer_of(options).first(document)


def _redacted(entry: Document) -> Document:
    redacted = dict(entry)
    for key, value in entry.items():
        if key in SECRET or key == "auth-provider":
            redacted[key] = OMITTED if key.endswith("-data") and key != "client-key-data" else REDACTED
        elif key == "exec" and isinstance(value, dict) and value.get("env"):
            redacted[key] = {**value, "env": [{**pair, "value": REDACTED} for pair in value["env"]]}
    return redacted
