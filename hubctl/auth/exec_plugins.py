"""Runs credential plug-ins of kubeconfigs as kubectl does. The credential is kept only in this process's memory.

A plug-in writes messages to standard error, which the user sees; its standard output is parsed and never shown.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hubctl.errors import CommandError
from machinery.client.exec_credential import (
    EXEC_INFO,
    ExecCluster,
    ExecCredential,
    ExecUser,
    Interactive,
    exec_info,
    read_credential,
)
from machinery.client.kubeconfig import ClusterEntry, Kubeconfig
from machinery.errors import InvalidError

PATIENCE, UNSEEN_PATIENCE = 300.0, 2.0
"""Time-outs in seconds; the first allows for a login in a browser, the second is for shell completion."""


def ask_plugin(found: Kubeconfig, plugin: ExecUser, *, unseen: bool = False) -> ExecCredential:
    """Run the plug-in of a kubeconfig's user; return its credential. Raises CommandError without any of its output.

    `unseen`: without messages and prompts.
    """
    called = f"the plug-in {plugin.command} of kubeconfig {found.source}"
    interactive = _is_interactive(plugin, called, unseen=unseen)
    cluster = _asked(found.cluster) if plugin.provides_cluster else None
    told = exec_info(cluster, api_version=plugin.api_version, interactive=interactive, config=plugin.cluster_config)
    text = _run(plugin, _program(plugin, called, found.source), told, called, interactive=interactive, unseen=unseen)
    try:
        return read_credential(text, plugin.api_version)
    except InvalidError as error:
        raise CommandError(f"{called} cannot be used: {error.message}") from None


def _asked(entry: ClusterEntry) -> ExecCluster:
    return ExecCluster(entry.server, entry.certificate_authority, entry.proxy_url, entry.tls_server_name)


def _is_interactive(plugin: ExecUser, called: str, *, unseen: bool) -> bool:
    """Whether it gets the terminal. Raises CommandError when it needs one and there is none."""
    at_terminal = not unseen and sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive is Interactive.ALWAYS and not at_terminal:
        raise CommandError(f"{called} asks a person (interactiveMode: Always), and the standard input is no terminal")
    return at_terminal and plugin.interactive is not Interactive.NEVER


def _program(plugin: ExecUser, called: str, source: str) -> str:
    """Its path. A command with a folder is relative to the kubeconfig's folder; any other is searched on the PATH."""
    command = plugin.command
    if os.sep in command and not Path(command).is_absolute():
        command = str(Path(source).absolute().parent / command)
    path = shutil.which(command)
    if path is None:
        hint = f": {_plain(plugin.install_hint)}" if plugin.install_hint else ": install it, or put it on the PATH"
        raise CommandError(f"{called} is not there{hint}", code=2)
    return path


def _run(plugin: ExecUser, path: str, told: str, called: str, *, interactive: bool, unseen: bool) -> str:
    patience = UNSEEN_PATIENCE if unseen else PATIENCE
    try:
        done = subprocess.run(  # noqa: S603 - the program that the user's kubeconfig names
            [path, *plugin.arguments],
            env={**os.environ, **plugin.environment, EXEC_INFO: told},
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if unseen else None,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandError(f"{called} is not done within {patience:g} s") from None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or "its arguments or its env"
        raise CommandError(f"{called} cannot be run ({why})", code=2) from None
    if done.returncode != 0:
        hint = f": {_plain(plugin.install_hint)}" if plugin.install_hint else ": what it says of that stands above"
        raise CommandError(f"{called} failed with exit code {done.returncode}{hint}")
    return done.stdout.decode(errors="replace")


def _plain(text: str) -> str:
    """The text on one line, without control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
