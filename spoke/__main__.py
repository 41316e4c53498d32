"""`spoke run`, the agent of one cluster as a process: settings, logging, signals, probes. And `spoke doctor`, which looks."""

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spoke.settings import Settings

STOP_WITHIN = 10
"""Seconds for the agent to leave its session and its secrets in order."""
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
DOCTOR_EPILOG = """\
Give it the settings that `spoke run` has, by the same flags, environment or file. In a cluster:

  kubectl -n open-cluster-management-agent exec deploy/spoke -- spoke doctor
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="spoke", description="The agent of a managed cluster.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_settings(
        commands.add_parser(
            "run",
            help="register this cluster with a hub and report its state",
            description=DESCRIPTION,
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    _add_settings(
        commands.add_parser(
            "doctor",
            help="walk the path from this cluster to its hub, and say what is wrong and what to do",
            description=DOCTOR,
            epilog=DOCTOR_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    return top


def _add_settings(run: argparse.ArgumentParser) -> None:
    """The settings of an agent, for every command about it."""
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
    hub = run.add_argument_group("how the hub is reached")
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
        "--addon-lease-check-period", metavar="TIME", help="how often the leases of add-ons are looked at (30s)"
    )
    addons.add_argument("--addon-lease-grace", metavar="TIME", help="how long a renewal of such a lease is good for (5m)")
    process = run.add_argument_group("the process")
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
    process.add_argument("--leader-elect-retry-period", metavar="TIME", help="how often it is renewed, and looked at (2s)")
    process.add_argument("--feature-gates", metavar="NAME=BOOL,...", help="ClusterClaim, ClusterProperty, AddonManagement")
    process.add_argument("--health-listen", metavar="HOST:PORT", help="probes; port 0 takes any free one (127.0.0.1:0)")
    process.add_argument("--log-format", metavar="FORMAT", help="json (default) or console")
    process.add_argument("--log-level", metavar="LEVEL", help="debug, info (default), warning or error")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT (0), until it cannot go on (1), or not at all for settings that are wrong (2).

    A second signal ends it at once (1).
    """
    flags = vars(parser().parse_args(arguments))
    gc.disable()  # what is imported now stays: to look for garbage in it costs a tenth of the start
    command = flags.pop("command")
    # Only now: `--help` and a mistyped flag need none of this.
    from machinery import logs, product  # noqa: PLC0415
    from machinery.errors import InvalidError  # noqa: PLC0415
    from spoke.settings import load  # noqa: PLC0415

    try:
        settings = load(flags, os.environ, flags.pop("config"))
    except InvalidError as error:
        print(f"spoke: {error.message}", file=sys.stderr)  # noqa: T201 - before there is a log
        return 2
    if command == "doctor":
        return _examine(settings)
    logs.configure(settings.log_level, logs.LogFormat(settings.log_format))
    import structlog  # noqa: PLC0415

    log = structlog.get_logger("spoke")
    log.info("spoke.starting", version=product.version(), pid=os.getpid())
    try:
        asyncio.run(_serve(settings))
    except InvalidError as error:
        log.error("spoke.cannot_start", error=error.message)  # noqa: TRY400 - the sentence says it all
        return 1
    except OSError as error:
        log.error("spoke.cannot_start", error=str(error))  # noqa: TRY400 - the sentence says it all
        return 1
    except Exception:
        log.exception("spoke.failed")
        return 1
    else:
        log.info("spoke.stopped")
        return 0
    finally:
        logs.flush()


def _examine(settings: "Settings") -> int:
    """Prints what it finds, step by step; 0: all is well, 1: something is not."""
    from machinery.errors import InvalidError  # noqa: PLC0415

    async def examined() -> bool:
        from spoke.app import examine  # noqa: PLC0415

        well = True
        async with examine(settings) as doctor:
            async for step in doctor.steps():
                well = well and step.ok
                sys.stdout.write(f"{'ok  ' if step.ok else 'FAIL'} {step.name}: {step.said}\n")
                if not step.ok and step.advice:
                    sys.stdout.write(f"     -> {step.advice}\n")
                sys.stdout.flush()
        return well

    try:
        return 0 if asyncio.run(examined()) else 1
    except (InvalidError, OSError) as error:
        sys.stderr.write(f"spoke: {error}\n")
        return 1


async def _serve(settings: "Settings") -> None:
    import structlog  # noqa: PLC0415

    from machinery.lifecycle.process import StopSignals  # noqa: PLC0415
    from spoke import probes  # noqa: PLC0415
    from spoke.app import build  # noqa: PLC0415
    from spoke.settings import parse_address  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    host, port = parse_address(settings.health_listen)
    with StopSignals() as stop:
        async with build(settings) as agent, probes.serve(agent.progress, host, port) as bound:
            structlog.get_logger("spoke").info("probes.listening", address=f"{host}:{bound}")
            running = asyncio.create_task(agent.run(), name="agent")
            stopping = asyncio.create_task(stop.requested.wait(), name="signals")
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if running.done():
                running.result()
            running.cancel()
            await asyncio.wait((running,), timeout=STOP_WITHIN)


if __name__ == "__main__":
    sys.exit(main())
