"""The credential of a kubeconfig whose user has a plug-in: hubctl runs it as kubectl does."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from hub.cli.failures import CommandError
from machinery.errors import InvalidError
from machinery.execcredential import EXEC_INFO, AskedCluster, ExecUser, exec_info, read_told
from machinery.kubeconfig import Credential, Kubeconfig

PATIENCE = 60.0
"""Seconds."""


def with_credential(found: Kubeconfig) -> Kubeconfig:
    """With what its plug-in tells, where it has one and no credential of its own. Raises CommandError."""
    if found.plugin is None or found.credential is not None or found.token is not None:
        return found
    cluster = found.cluster
    asked = AskedCluster(cluster.server, cluster.certificate_authority, cluster.proxy_url, cluster.tls_server_name)
    text = _run(found.plugin, exec_info(asked if found.plugin.provides_cluster else None), found.source)
    try:
        told = read_told(text)
    except InvalidError as error:
        raise CommandError(f"{error.message} (kubeconfig {found.source})") from None
    return replace(found, credential=Credential(told.chain.encode(), told.key.encode()))


def _run(plugin: ExecUser, told: str, source: str) -> str:
    command = plugin.command
    if os.sep in command and not Path(command).is_absolute():
        command = str(Path(source).absolute().parent / command)
    path = shutil.which(command)
    if path is None:
        hint = f": {plugin.install_hint}" if plugin.install_hint else ""
        raise CommandError(f"the plug-in {plugin.command} of kubeconfig {source} is not there{hint}", code=2)
    try:
        done = subprocess.run(  # noqa: S603 - the program that the user's kubeconfig names
            [path, *plugin.arguments],
            env={**os.environ, **plugin.environment, EXEC_INFO: told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandError(f"the plug-in {plugin.command} of kubeconfig {source} is not done within {PATIENCE:g} s") from None
    if done.returncode != 0:
        raise CommandError(f"the plug-in {plugin.command} of kubeconfig {source} failed with exit code {done.returncode}")
    return done.stdout
