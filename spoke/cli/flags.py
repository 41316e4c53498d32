"""The command line of `spoke`: commands and their help. The flags are the settings."""

import argparse
from pathlib import Path
from typing import Any

from spoke.settings import ALIASES, SpokeSettings

DESCRIPTION = """\
Registers this cluster with a hub and reports its state for as long as it runs.

The first start needs a bootstrap kubeconfig (hubctl create bootstrap-kubeconfig). With it the agent asks the hub for a
certificate of its own, keeps that in the secret "hub-kubeconfig-secret", and renews it in time. When the hub is away, refuses,
or forgets, the agent goes on trying; it need never be restarted. A bootstrap kubeconfig that is replaced is noticed.

With several bootstrap kubeconfigs it has several hubs: it reports to one, and is registered at the others as well.
"""
EPILOG = """\
Every flag can also be set in the environment (SPOKE_CLUSTER_NAME for --cluster-name) and in the file of --config
(cluster-name: ...). Flags win over the environment, the environment over the file.

Probes: /livez and /healthz tell that the process makes progress, whatever the hub does; /readyz tells that the hub has
acknowledged a beat within the lease duration, else which step fails.
"""


DOCTOR = """\
Looks at this cluster's API server, the stored credential and the bootstrap kubeconfig, the hub's name, its port, its
certificate and ours, its clock, and what the running agent says of acceptance and its last beat. It only looks: it opens no
session and writes nothing. Exits with 1 when something is wrong.
"""
LEAVE = """\
Takes this cluster out of all its hubs, and the agent's credentials out of this cluster: ends the session, tells every hub that
gave a credential, deletes add-ons' credentials, the agent's own and its Lease. Can be called again, and goes on where it was.

A running agent stays away afterwards, until it is given a new bootstrap kubeconfig, started with --rejoin, or the secret
"hub-kubeconfig-secret", which then holds nothing but the mark, is deleted. Exits with 1 when something remains to be done at
a hub, and says what.
"""
REJOIN = """\
Has the agent register anew at its hubs, under the names that it has: ends the session, deletes the agent's credentials, and
lets it join again with its bootstrap kubeconfig, which has to be good for that. Hubs are left as they are: the cluster stays.
A credential that was deleted by hand does not do that: a running agent creates it again.
"""
STATUS = """\
Prints the cluster and the agent's name, what this process is to the agent, the hub that it reports to and why, every hub of its
list with its state and the end of its credential, the last beat, and the last decisions. It asks the running agent at
--health-listen, and reads the agent's secrets, which it also does when no agent answers. No key is shown.

Exits with 0 when the agent is ready or stands by, 1 when it is not ready, 3 when none answers.
"""
IN_CLUSTER = """\
Give it the settings that `spoke run` has, by the same flags, environment or file. In a cluster:

  kubectl -n open-cluster-management-agent exec deploy/spoke -- spoke {command}
"""


GROUPS = {
    "bootstrap_kubeconfig": "where the hub and the cluster are",
    "hub_timeout": "which of several hubs has the session",
    "hub_keepalive": "how the hub is reached",
    "cluster_name": "names",
    "component_namespace": "the credential",
    "cluster_healthcheck_period": "what is reported",
    "addon_kubeclient_registration_auth": "add-ons",
    "rejoin": "the process",
}
"""Titles in the help, by the first setting of each group."""
REPEATABLE = ("bootstrap_kubeconfig", "bootstrap_kubeconfig_secret")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="spoke", description="The agent of a managed cluster.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, what: str, description: str, epilog: str) -> argparse.ArgumentParser:
        formatter = argparse.RawDescriptionHelpFormatter
        made = commands.add_parser(name, help=what, description=description, epilog=epilog, formatter_class=formatter)
        _add_settings(made)
        return made

    command("run", "register this cluster with a hub and report its state", DESCRIPTION, EPILOG)
    well = "walk the path from this cluster to its hubs, and say what is wrong and what to do"
    command("doctor", well, DOCTOR, IN_CLUSTER.format(command="doctor"))
    status = command(
        "status", "say what the agent does, and how it stands with its hubs", STATUS, IN_CLUSTER.format(command="status")
    )
    status.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text", help="text, json or yaml")
    leave = command("leave", "take this cluster out of its hubs", LEAVE, IN_CLUSTER.format(command="leave"))
    leave.add_argument(
        "--timeout", default="30s", metavar="TIME", help="for the agent to stop, and for each hub to answer (30s)"
    )
    rejoin = command("rejoin", "have the agent register anew", REJOIN, IN_CLUSTER.format(command="rejoin"))
    rejoin.add_argument("--timeout", default="30s", metavar="TIME", help="for the agent to stop (30s)")
    leave.add_argument("--force", action="store_true", help="delete everything here, also where a hub could not be told")
    return top


def _add_settings(command: argparse.ArgumentParser) -> None:
    """Add the settings of an agent, for every command about it."""
    command.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    others = {name: f"--{other.replace('_', '-')}" for other, name in ALIASES.items()}
    # It comes first in the help; its check needs the setting that is declared before it.
    names = ["bootstrap_kubeconfig", *(name for name in SpokeSettings.model_fields if name != "bootstrap_kubeconfig")]
    group = command.add_argument_group()
    for name in names:
        if name in GROUPS:
            group = command.add_argument_group(GROUPS[name])
        field = SpokeSettings.model_fields[name]
        options = [f"--{name.replace('_', '-')}", *([others[name]] if name in others else [])]
        more: dict[str, Any] = {"action": "append"} if name in REPEATABLE else {}
        if isinstance(field.default, bool):
            more = {"nargs": "?", "const": "true"}
        group.add_argument(*options, metavar=field.title, help=field.description, **more)
