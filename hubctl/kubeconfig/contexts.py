"""Shell completion of kubeconfig contexts, and access to options on the command line so far."""

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem


def context_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Contexts of the kubeconfig in use."""
    del parameter

    def found() -> Iterable[str]:
        from hubctl.kubeconfig.loading import KubeconfigFiles  # noqa: PLC0415 - only when a key was pressed

        return KubeconfigFiles.chosen(option_of(context, "kubeconfig")).contexts

    return quietly(found, incomplete)


def option_of(context: click.Context, name: str) -> str | None:
    """An option given to the command, or before it."""
    at: click.Context | None = context
    while at is not None:
        if at.params.get(name):
            return str(at.params[name])
        at = at.parent
    return None


def quietly(find: Callable[[], Iterable[str]], incomplete: str) -> list[CompletionItem]:
    """The words with this prefix; empty after an error."""
    from hubctl.errors import CommandError  # noqa: PLC0415 - only when a key was pressed

    try:
        return [CompletionItem(word) for word in find() if word.startswith(incomplete)]
    except (CommandError, click.ClickException):
        return []
