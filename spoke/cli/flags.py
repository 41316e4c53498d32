"""The command line of `spoke`: commands, flags and their help."""

import argparse
from pathlib import Path

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


def _add_settings(run: argparse.ArgumentParser) -> None:
    """Add the settings of an agent, for every command about it."""
    run.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    files = run.add_argument_group("where the hub and the cluster are")
    files.add_argument(
        "--bootstrap-kubeconfig",
        "--bootstrap-kubeconfigs",
        action="append",
        metavar="FILE",
        help="the hub, and the credential to ask it for a certificate; several, in the order they are preferred, by repeating "
        "it or with commas",
    )
    files.add_argument(
        "--bootstrap-kubeconfig-secret",
        action="append",
        metavar="NAME",
        help="the same from the key `kubeconfig` of a secret in the component namespace, repeatable; they follow the files",
    )
    files.add_argument(
        "--standby-registration",
        metavar="BOOL",
        help="false: register at the chosen hub alone, at the others when they are chosen (default: true, at all of them)",
    )
    files.add_argument(
        "--kubeconfig", metavar="FILE", help="the cluster that holds the agent's secrets (default: the one this runs in)"
    )
    files.add_argument(
        "--spoke-kubeconfig", metavar="FILE", help="the cluster to report, if that is another one (default: as --kubeconfig)"
    )
    several = run.add_argument_group("which of several hubs has the session")
    several.add_argument(
        "--hub-timeout",
        "--hub-connection-timeout-seconds",
        metavar="TIME",
        help="how long a hub that is lost is tried again before another takes over (1500ms; at most, the time is drawn)",
    )
    several.add_argument(
        "--fail-back-after",
        metavar="TIME",
        help="go back to a hub further up in the list once it has been ready for so long (0: stay)",
    )
    several.add_argument(
        "--unaccepted-hub",
        metavar="HOW",
        help="skip: a hub that has not accepted this cluster gets the session where no other would do (default); wait: it is "
        "as good as one that has",
    )
    several.add_argument(
        "--hub-give-up-after",
        metavar="TIME",
        help="with --standby-registration=false: how long a hub must be lost before the agent registers at the next (10m)",
    )
    hub = run.add_argument_group("how the hub is reached")
    hub.add_argument(
        "--hub-keepalive", metavar="TIME", help="an idle connection over gRPC is tried so often (10s, not below 5s) ..."
    )
    hub.add_argument("--hub-keepalive-timeout", metavar="TIME", help="... and lost when nothing is heard for so long (5s)")
    hub.add_argument("--hub-silence", metavar="TIME", help="a beat that is not acknowledged for so long ends a session (5s)")
    hub.add_argument(
        "--registration-driver",
        "--registration-auth",
        metavar="DRIVER",
        help="grpc, csr (the Kubernetes API alone, also to an Open Cluster Management hub), or auto: as the kubeconfig has it",
    )
    hub.add_argument(
        "--proxy-url",
        metavar="URL",
        help="HTTP CONNECT proxy (default: the kubeconfig's proxy-url, else HTTPS_PROXY and NO_PROXY); one with a password "
        "belongs into SPOKE_PROXY_URL or the file, not here",
    )
    names = run.add_argument_group("names")
    names.add_argument(
        "--cluster-name",
        "--spoke-cluster-name",
        metavar="NAME",
        help="name on the hub (default: as before, else that of the bootstrap kubeconfig, else a UUID)",
    )
    names.add_argument("--agent-id", metavar="ID", help="name of this agent (default: as before, else five random letters)")
    kept = run.add_argument_group("the credential")
    kept.add_argument(
        "--component-namespace",
        metavar="NAME",
        help="namespace of the secrets (default: the one this runs in, else open-cluster-management-agent)",
    )
    kept.add_argument("--hub-kubeconfig-dir", metavar="DIR", help="directory that mirrors the hub kubeconfig secret")
    kept.add_argument(
        "--client-cert-expiration-seconds", metavar="N", help="wanted life of certificates, at least 3600 (0: the hub decides)"
    )
    kept.add_argument(
        "--attestation-service-account",
        metavar="NAMESPACE/NAME",
        help="the service account of this cluster by whose token it proves to a hub which one it is (default: this pod's)",
    )
    told = run.add_argument_group("what is reported")
    told.add_argument("--cluster-healthcheck-period", metavar="TIME", help="how often everything is looked at anew (1m)")
    told.add_argument("--max-custom-cluster-claims", metavar="N", help="custom cluster claims beyond this are left out (20)")
    told.add_argument("--reserved-cluster-claim-suffixes", metavar="A,B", help="claims whose names end so are never left out")
    told.add_argument("--spoke-external-server-urls", metavar="URL,URL", help="where others reach this cluster's API (https)")
    told.add_argument("--spoke-external-ca", metavar="FILE", help="CA bundle that verifies those URLs")
    told.add_argument(
        "--cluster-labels", metavar="K=V,K=V", help="labels for the cluster when it joins, as far as the hub allows"
    )
    told.add_argument("--cluster-annotations", metavar="K=V,K=V", help="annotations (agent.open-cluster-management.io/...)")
    _add_addons(run)
    process = run.add_argument_group("the process")
    process.add_argument(
        "--rejoin",
        nargs="?",
        const="true",
        metavar="BOOL",
        help="join again after `spoke leave`, with the bootstrap kubeconfig that there was",
    )
    process.add_argument(
        "--leader-elect",
        nargs="?",
        const="true",
        metavar="BOOL",
        help="of several processes of this agent, one works: the holder of its Lease in the component namespace (true)",
    )
    process.add_argument(
        "--leader-elect-resource-name", metavar="NAME", help="name of that Lease (default: spoke-agent); one for each agent"
    )
    process.add_argument(
        "--leader-elect-lease-duration",
        metavar="TIME",
        help="another process takes over when it was not renewed for so long (15s)",
    )
    process.add_argument(
        "--leader-elect-renew-deadline", metavar="TIME", help="the holder stops when it could not renew for so long (10s)"
    )
    process.add_argument("--leader-elect-retry-period", metavar="TIME", help="how often it is renewed, and looked at (5s)")
    process.add_argument("--feature-gates", metavar="NAME=BOOL,...", help="ClusterClaim, ClusterProperty, AddonManagement")
    process.add_argument(
        "--health-listen", metavar="HOST:PORT", help="probes; port 0: any free one, which doctor and status find (127.0.0.1:0)"
    )
    process.add_argument("--log-format", metavar="FORMAT", help="json (default) or console")
    process.add_argument("--log-level", metavar="LEVEL", help="debug, info (default), warning or error")
    process.add_argument("--trace-endpoint", metavar="URL", help="collector for traces (OTLP over gRPC); without it: none")
    process.add_argument("--trace-share", metavar="SHARE", help="the share of traces that is recorded; default 1.0")


def _add_addons(run: argparse.ArgumentParser) -> None:
    addons = run.add_argument_group("add-ons")
    addons.add_argument(
        "--addon-kubeclient-registration-auth",
        metavar="HOW",
        help="how add-ons identify themselves at the hub: csr (by certificate, the default) or token (of a ServiceAccount)",
    )
    addons.add_argument(
        "--addon-token-expiration-seconds", metavar="N", help="wanted life of those tokens, 600 at least (a year)"
    )
    addons.add_argument(
        "--addon-namespaces",
        metavar="A,B",
        help="namespaces in which add-ons' secrets are written (open-cluster-management-agent-addon); never the agent's own",
    )
    addons.add_argument(
        "--adopt-addon-secrets",
        nargs="?",
        const="true",
        metavar="BOOL",
        help="take over add-ons' secrets that Open Cluster Management's agent has created (false: they are left as they are)",
    )
    addons.add_argument(
        "--addon-lease-check-period", metavar="TIME", help="how often the leases of add-ons are looked at (30s)"
    )
    addons.add_argument("--addon-lease-grace", metavar="TIME", help="how long a renewal of such a lease is good for (5m)")
