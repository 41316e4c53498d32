"""The client that a command uses, and the options that select its kubeconfig and context."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import click

from hubctl.auth.kubeconfig import KubeconfigFiles, context_names, option_of
from hubctl.client.http import REQUEST_TIMEOUT, ApiClient


def client_of(given: str | None, context: str | None, *, patience: float = REQUEST_TIMEOUT, unseen: bool = False) -> ApiClient:
    """A client for the hub of a kubeconfig; `unseen`: without prompts. Raises CommandError."""
    return ApiClient(KubeconfigFiles.chosen(given).read(context), patience, unseen=unseen)


def chosen_client(context: click.Context, *, patience: float = REQUEST_TIMEOUT, unseen: bool = False) -> ApiClient:
    """The client for the options --kubeconfig and --context, given to the command or before it. Raises CommandError."""
    given = option_of(context, "kubeconfig"), option_of(context, "context_name")
    return client_of(*given, patience=patience, unseen=unseen)


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options --kubeconfig and --context to a command and pass it a client as its first argument."""

    @click.option("--kubeconfig", metavar="FILE", help="The kubeconfig of the hub.")
    @click.option(
        "--context",
        "context_name",
        metavar="NAME",
        shell_complete=context_names,
        help="Context of the kubeconfig. Default: the current context.",
    )
    @click.pass_context
    def with_client(context: click.Context, /, kubeconfig: str | None, context_name: str | None, **arguments: Any) -> None:
        del kubeconfig, context_name  # chosen_client reads them
        client = chosen_client(context)
        with client.keep_connections():
            command(client, **arguments)

    # click reads name, help and parameters from here
    update_wrapper(with_client, command)
    return with_client
