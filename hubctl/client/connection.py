"""Selects the kubeconfig and context for hubctl; the common options for them."""

from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from typing import Any, TypeVar

import click

from hubctl.auth.kubeconfig import KubeconfigFiles, context_names
from hubctl.client.http import REQUEST_TIMEOUT, ApiClient
from machinery.client.kubeconfig import Kubeconfig

Command = TypeVar("Command", bound=Callable[..., Any])


def kubeconfig_path(given: str | None) -> Path:
    """The file to use: the first existing one of a list. Raises CommandError."""
    return KubeconfigFiles.chosen(given).first


def load_kubeconfig(given: str | None, context: str | None = None) -> Kubeconfig:
    """The kubeconfig to use. Raises CommandError with the file and the defect."""
    return KubeconfigFiles.chosen(given).read(context)


def client_of(given: str | None, context: str | None, *, patience: float = REQUEST_TIMEOUT, unseen: bool = False) -> ApiClient:
    """A client for the hub of a kubeconfig; `unseen`: without prompts. Raises CommandError."""
    return ApiClient(load_kubeconfig(given, context), patience, unseen=unseen)


def kubeconfig_options(command: Command) -> Command:
    """--kubeconfig and --context, for commands that read a kubeconfig themselves."""
    file = click.option("--kubeconfig", metavar="FILE", help="The kubeconfig of the hub.")
    context = click.option(
        "--context",
        "context_name",
        metavar="NAME",
        shell_complete=context_names,
        help="Context of the kubeconfig. Default: the current context.",
    )
    return file(context(command))


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options --kubeconfig and --context to a command and pass it a client as its first argument."""

    @kubeconfig_options
    @click.pass_context
    def with_client(context: click.Context, /, kubeconfig: str | None, context_name: str | None, **arguments: Any) -> None:
        command(
            client_of(kubeconfig or root_option(context, "kubeconfig"), context_name or root_option(context, "context_name")),
            **arguments,
        )

    # click reads name, help and parameters from here
    update_wrapper(with_client, command)
    return with_client


def root_option(context: click.Context, name: str) -> str | None:
    """An option that was given before the command."""
    return context.find_root().params.get(name)
