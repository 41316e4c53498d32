"""The command line of `spoke`: commands and their help. The flags are made from the fields of `SpokeSettings`."""

import argparse
from collections.abc import Container
from pathlib import Path
from typing import Any

DESCRIPTION = """\
Registers this cluster with a hub and reports its state for as long as it runs.

The first start needs a bootstrap kubeconfig (hubctl create bootstrap-kubeconfig). With it the agent asks the hub for a
client certificate, stores it in the Secret "hub-kubeconfig-secret", and renews it before it expires. If the hub is unavailable
or rejects the agent, the agent retries; no restart is needed. It reloads a bootstrap kubeconfig that changes.

With several bootstrap kubeconfigs the agent has several hubs: it reports to one and registers at the others too.
"""
EPILOG = """\
Every flag can also be set in the environment (SPOKE_CLUSTER_NAME for --cluster-name) and in the file of --config
(cluster-name: ...). Flags win over the environment, the environment over the file.

Probes: /livez and /healthz succeed while the process makes progress, independent of the hub; /readyz succeeds if the hub has
acknowledged a beat within the lease duration, otherwise it names the step that fails.
"""


DOCTOR = """\
Checks this cluster's API server, the stored credential and the bootstrap kubeconfig; name resolution, port, certificate and
clock of each hub; the client certificate; and acceptance and last beat as reported by the running agent. It is read-only and
opens no session. Exit code: 1 if a check fails.
"""
LEAVE = """\
Removes this cluster from all its hubs, and the agent's credentials from this cluster: ends the session, notifies every hub that
issued a credential, deletes the credentials of add-ons and of the agent, and its Lease. A repeated call continues where the
last one stopped.

A running agent then does not reconnect until it gets a new bootstrap kubeconfig, starts with --rejoin, or the Secret
"hub-kubeconfig-secret", which then only records the departure, is deleted. Exit code: 1 if work remains at a hub; the output
names it.
"""
REJOIN = """\
Registers the agent again at its hubs under its current names: ends the session and deletes the agent's credentials; the agent
then joins with its bootstrap kubeconfig, which must still be valid. Nothing changes at the hubs: the cluster stays there.
Deleting the credential by hand has no such effect, because a running agent creates it again.
"""
STATUS = """\
Prints the cluster name and agent id, the role of this process in leader election, the owner hub and the reason for its choice,
each hub of the list with its state and the expiry of its credential, the last beat, and the last decisions. It queries the
running agent at --health-listen and reads the agent's Secrets, also if no agent answers. It prints no keys.

Exit codes: 0 the agent is ready or on standby, 1 it is not ready, 3 no agent answers.
"""
IN_CLUSTER = """\
Use the same settings as for `spoke run`: flags, environment or file. In a cluster (deploy/RELEASE-muster-spoke after
a Helm installation):

  kubectl -n open-cluster-management-agent exec deploy/muster-spoke -- spoke {command}
"""


GROUPS = {
    "bootstrap_kubeconfig": "hubs and clusters",
    "hub_timeout": "choice of the hub",
    "hub_keepalive": "connection to the hub",
    "cluster_name": "names",
    "component_namespace": "credentials",
    "cluster_healthcheck_period": "reported status",
    "addon_kubeclient_registration_auth": "add-ons",
    "rejoin": "process",
}
"""Maps the first setting of each group to the group's title in the help."""
REPEATABLE = ("bootstrap_kubeconfig", "bootstrap_kubeconfig_secret")


def parser(arguments: Container[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of a command line. Only commands in `arguments` get the flags of their settings (None: all commands).

    The reason: importing the settings takes longer than everything else that `spoke --help` needs.
    """
    top = argparse.ArgumentParser(prog="spoke", description="The agent of a managed cluster.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, what: str, description: str, epilog: str) -> argparse.ArgumentParser:
        formatter = argparse.RawDescriptionHelpFormatter
        made = commands.add_parser(name, help=what, description=description, epilog=epilog, formatter_class=formatter)
        if arguments is None or name in arguments:
            _add_settings(made)
        return made

    command("run", "register this cluster with a hub and report its state", DESCRIPTION, EPILOG)
    well = "check the connection from this cluster to its hubs, and suggest how to fix errors"
    command("doctor", well, DOCTOR, IN_CLUSTER.format(command="doctor"))
    status = command("status", "show the state of the agent and its hubs", STATUS, IN_CLUSTER.format(command="status"))
    status.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text", help="output format")
    leave = command("leave", "remove this cluster from its hubs", LEAVE, IN_CLUSTER.format(command="leave"))
    leave.add_argument(
        "--timeout", default="30s", metavar="TIME", help="maximum time for the agent to stop, and for each hub to answer (30s)"
    )
    rejoin = command("rejoin", "register the agent again", REJOIN, IN_CLUSTER.format(command="rejoin"))
    rejoin.add_argument("--timeout", default="30s", metavar="TIME", help="maximum time for the agent to stop (30s)")
    leave.add_argument(
        "--force", action="store_true", help="delete everything in this cluster, even if a hub could not be notified"
    )
    return top


def _add_settings(command: argparse.ArgumentParser) -> None:
    from spoke.settings import ALIASES, SpokeSettings  # noqa: PLC0415 - see `parser`

    command.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    others = {name: f"--{other.replace('_', '-')}" for other, name in ALIASES.items()}
    # First in the help, although declared second: its check reads the setting that is declared before it.
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
        group.add_argument(*options, metavar=field.title, help=" ".join((field.description or "").split()), **more)
