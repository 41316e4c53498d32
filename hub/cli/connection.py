"""Which kubeconfig hubctl uses, and the option that every command takes for it."""

import os
from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from typing import Any, TypeVar

import click

from hub.cli.client import HubClient
from hub.cli.failures import CommandError
from hub.cli.plugins import with_credential
from machinery.directory import default_data_dir
from machinery.errors import InvalidError
from machinery.kubeconfig import Kubeconfig, read_kubeconfig

Command = TypeVar("Command", bound=Callable[..., Any])
ADMIN_KUBECONFIG = "admin.kubeconfig"
VARIABLES = ("HUBCTL_KUBECONFIG", "KUBECONFIG")


def kubeconfig_path(given: str | None) -> Path:
    """The flag's file, else $HUBCTL_KUBECONFIG, else the first file of $KUBECONFIG, else the admin kubeconfig of a hub here."""
    if given:
        return Path(given).expanduser()
    for variable in VARIABLES:
        named = [part for part in os.environ.get(variable, "").split(os.pathsep) if part]
        if named:
            return Path(next((part for part in named if Path(part).exists()), named[0]))
    path = default_data_dir() / ADMIN_KUBECONFIG
    if not path.exists():
        raise CommandError(
            f"no kubeconfig: there is none at {path}, where a hub on this machine writes it. "
            "Give --kubeconfig FILE or set HUBCTL_KUBECONFIG",
            code=2,
        )
    return path


def load_kubeconfig(given: str | None) -> Kubeconfig:
    """The kubeconfig to use. Raises CommandError that names the file and what is wrong with it."""
    try:
        return read_kubeconfig(kubeconfig_path(given))
    except InvalidError as error:
        raise CommandError(error.message, code=2) from None


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the option --kubeconfig and, as its first argument, a client."""

    @click.option("--kubeconfig", metavar="FILE", help="The kubeconfig that leads to the hub.")
    @click.pass_context
    def with_client(context: click.Context, /, kubeconfig: str | None, **arguments: Any) -> None:
        command(HubClient(with_credential(load_kubeconfig(kubeconfig or context.obj))), **arguments)

    # click reads name, help and parameters from here
    update_wrapper(with_client, command)
    return with_client
