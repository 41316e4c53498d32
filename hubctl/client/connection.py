"""The client that a command uses, and the options that select its kubeconfig, context and user."""

from collections.abc import Callable
from dataclasses import replace
from functools import update_wrapper
from typing import Any

import click

from hubctl.auth.kubeconfig import KubeconfigFiles, context_chain, context_names, option_of
from hubctl.client.http import REQUEST_TIMEOUT, ApiClient
from hubctl.options import CONNECTION, IMPERSONATION, with_options


def client_of(given: str | None, context: str | None) -> ApiClient:
    """Return a client for a kubeconfig. `given`: the value of --kubeconfig; None: the default files. Raises CommandError."""
    return ApiClient(KubeconfigFiles.chosen(given).read(context))


def chosen_client(context: click.Context, *, timeout: float = REQUEST_TIMEOUT, prompts: bool = True) -> ApiClient:
    """Return the client for the connection options, given to the command or before it. Raises CommandError."""
    config = KubeconfigFiles.chosen(option_of(context, "kubeconfig")).read(option_of(context, "context_name"))
    own = config.impersonation
    groups = next((found for at in context_chain(context) if (found := at.params.get("as_groups"))), own.groups)
    user, uid = option_of(context, "as_user") or own.user, option_of(context, "as_uid") or own.uid
    chosen = replace(config, impersonation=replace(own, user=user, groups=groups, uid=uid))
    return ApiClient(chosen, timeout, prompts=prompts)


connection_options = with_options(
    click.option("--kubeconfig", metavar="FILE", help="The kubeconfig of the hub."),
    click.option(
        "--context",
        "context_name",
        metavar="NAME",
        shell_complete=context_names,
        help="Context of the kubeconfig. Default: the current context.",
    ),
    *IMPERSONATION,
)
"""Options that select the hub and the user. They may also be given before the command."""


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Add `connection_options` to a command, and pass it a client as its first argument."""

    @connection_options
    @click.pass_context
    def with_client(context: click.Context, /, **arguments: Any) -> None:
        arguments = {name: value for name, value in arguments.items() if name not in CONNECTION}  # chosen_client reads these
        client = chosen_client(context)
        client.dry_run = bool(arguments.get("dry_run"))
        with client.keep_connections():
            command(client, **arguments)

    # click reads name, help and parameters of the command from this function
    update_wrapper(with_client, command)
    return with_client
