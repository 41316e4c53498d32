"""Kubernetes API servers without machines, for demos, tests and load tests."""

import machinery.startup_imports  # isort: skip

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from machinery import product
from machinery.durations import parse_duration
from machinery.errors import MusterError
from machinery.lifecycle.process import stop_signals

machinery.startup_imports.require_extra("hollow")
machinery.startup_imports.load_http_client()

from hollow.cluster import AUTHORITY_PATH, HollowFleet, names, serve_fleet  # noqa: E402 - needs the extra
from hollow.faults import ADMIN_PATH, Faults  # noqa: E402 - the same
from hollow.load.settings import LAG_LIMIT, Limits, LoadSettings, Profile  # noqa: E402 - the same
from hollow.objects import KUBERNETES_VERSION, ClusterShape  # noqa: E402 - the same

if TYPE_CHECKING:
    from machinery.client.rest import KubeClient

_SERVE_HELP = """Serves hollow clusters until SIGTERM or Ctrl-C.

A hollow cluster is a Kubernetes API server with TLS for kubectl, Helm and any other client. It serves nodes, namespaces,
secrets, config maps, leases, events, Deployments with their pods, ClusterClaims, RBAC and other kinds that charts install.
Its roles limit the rights of ServiceAccounts. It runs no containers and stores nothing on disk. A cluster with the same
name has the same identity (the uid of kube-system) at every start.

\b
  hollow serve --kubeconfig-out c1.kubeconfig
  kubectl --kubeconfig c1.kubeconfig get nodes
  hollow serve --count 100 --name load --kubeconfig-out '/tmp/fleet/{name}.kubeconfig'

The kubeconfig is written when the cluster answers."""

_FAULT_HELP = """Sets the faults of a running hollow cluster.

The given FAULTs replace all earlier ones; `none` removes all. Without FAULTs, the command shows the active faults.

\b
  slow=2s               every answer is delayed by this time
  error                 every request gets 500
  hang                  no request is answered
  not-live              /livez and /healthz fail; the API works
  no-livez              /livez does not exist; /healthz works
  refuse-secret-writes  secrets can be read but not written
  stall-before-write=3  the third write of a secret from now on is neither executed nor answered
  stall-after-write=3   the third write of a secret from now on is executed but not answered

\b
  hollow fault --kubeconfig c1.kubeconfig not-live
  hollow fault --kubeconfig c1.kubeconfig slow=500ms refuse-secret-writes
  hollow fault --kubeconfig c1.kubeconfig none"""

_LOAD_HELP = """Loads a hub with simulated agents and reports how it keeps up.

A simulated agent has no cluster. Everything else is real: the key, the certificate request, the connection with a client
certificate, the heartbeats at the hub's interval, the status reports, the reports about add-ons, the renewals, and the
back-off after a lost session. 1,000 agents need 200 to 350 MiB and 5 % of a core; opening a session costs 4 ms.

\b
PROFILE  once all agents are connected, for --duration:
  join   nothing; the load ends when the first heartbeat of each agent is acknowledged
  steady heartbeats and periodic status reports
  churn  as steady, and the status of each cluster changes --changes-per-minute times
  storm  as steady, and all sessions break at once --every 30s
  flap   as steady, and --share of the agents is silent, other ones --every 30s

\b
  hubctl create bootstrap-kubeconfig --cluster-pattern 'load-*' --uses unlimited --expires 8h -o load.bootstrap
  hollow load join --bootstrap-kubeconfig load.bootstrap --agents 1000 --ramp 60s
  hollow load steady --bootstrap-kubeconfig load.bootstrap --agents 1000 --duration 5m --report load.json

The agents join like real agents, so the hub needs an ApprovalRule that accepts and approves them. Keys and certificates are
stored in --state-dir; a later run joins only agents that have none. Several machines can load one hub, each with another
--first-index.

The latency of a heartbeat begins when the heartbeat is due. "join" is the time from an agent's start to its certificate,
"reconnect" the time from the loss of a session to the next session. A heartbeat is lost if it is not acknowledged, or if it was
due while there was no session.

\b
Exit codes: 0  all limits were kept
            1  the load could not run
            2  wrong options
            3  a limit was exceeded, or not all agents were connected within --start-within
            4  the generator was too slow, so the run did not measure the hub. Use more --processes or machines

A load does not simulate: an API server and its watches, add-on certificates, attestation, recovery certificates, several hubs
and fail-over, proxies, the Kubernetes API as transport (driver csr), and network faults (see docs/how-to/size-a-hub.md)."""


F = TypeVar("F", bound=Callable[..., Any])


class _Seconds(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else parse_duration(value).total_seconds()
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, help=__doc__)
@click.version_option(product.version(), prog_name="hollow")
def main() -> None:
    pass


@main.command(help=_SERVE_HELP)
@click.option(
    "--kubeconfig-out", required=True, metavar="FILE", help="Where to write the kubeconfig; {name} is the cluster's name."
)
@click.option(
    "--name", default="hollow", show_default=True, help="Name of the cluster; with --count, the names are NAME-0, NAME-1, ..."
)
@click.option("--nodes", default=5, show_default=True, type=click.IntRange(0, 10_000), help="Nodes of each cluster.")
@click.option("--claims", default=4, show_default=True, type=click.IntRange(0, 10_000), help="ClusterClaims of each cluster.")
@click.option("--kubernetes-version", default=KUBERNETES_VERSION, show_default=True, help="The reported version.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(1, 10_000), help="How many clusters to serve.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--advertise", default="", help="Name or address in the kubeconfig; by default that of --host.")
@click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="First port; 0 takes free ones.")
@click.option("--fault", "faults", multiple=True, metavar="FAULT", help="A fault to start with (see `hollow fault --help`).")
def serve(
    *,
    kubeconfig_out: str,
    name: str,
    nodes: int,
    claims: int,
    kubernetes_version: str,
    count: int,
    faults: tuple[str, ...],
    **address: Any,
) -> None:
    async def run() -> None:
        shapes = tuple(
            ClusterShape(each, nodes=nodes, claims=claims, version=kubernetes_version) for each in names(name, count)
        )
        fleet = HollowFleet(shapes, kubeconfig_out, faults=Faults.named(*faults), **address)
        with stop_signals() as stop:
            async with serve_fleet(fleet) as clusters:
                for cluster in clusters:
                    path = fleet.kubeconfig_path(cluster.shape)
                    click.echo(f"hollow cluster {cluster.shape.name} answers at {cluster.url}, kubeconfig {path}")
                await stop.wait()

    with _reported_errors():
        asyncio.run(run())
    click.echo("hollow clusters stopped")


@main.command(help=_FAULT_HELP)
@click.option("--kubeconfig", required=True, type=click.Path(path_type=Path), help="The cluster's kubeconfig.")
@click.argument("faults", nargs=-1, metavar="[FAULT]...")
def fault(kubeconfig: Path, faults: tuple[str, ...]) -> None:
    async def switch() -> dict[str, object]:
        async with _client(kubeconfig) as client:
            if not faults:
                return await client.get(ADMIN_PATH)
            wanted = Faults.named(*(word for word in faults if word != "none"))
            return await client.update(ADMIN_PATH, wanted.document())

    with _reported_errors():
        active = asyncio.run(switch())
    click.echo(", ".join(word if value is True else f"{word}={value}" for word, value in active.items()) or "healthy")


def _duration(*names: str, default: str | None, text: str) -> Callable[[F], F]:
    return click.option(*names, default=default, show_default=default is not None, type=_Seconds(), help=text)


@main.command(help=_LOAD_HELP)
@click.argument("profile", type=click.Choice([each.value for each in Profile]))
@click.option(
    "--bootstrap-kubeconfig", required=True, metavar="FILE", help="The hub's address and the credential to join with."
)
@click.option(
    "--state-dir", default="hollow-load", show_default=True, metavar="DIR", help="Where keys and certificates are kept."
)
@click.option("--agents", default=100, show_default=True, type=click.IntRange(1, 100_000), help="Agents of this machine.")
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1, 64), help="Processes that share the agents.")
@click.option("--name-prefix", default="load", show_default=True, help="The clusters are named PREFIX-0, PREFIX-1, ...")
@click.option("--first-index", default=0, show_default=True, type=click.IntRange(0), help="Number of the first cluster.")
@_duration("--duration", default="1m", text="How long to measure.")
@_duration("--ramp", default="10s", text="Time over which the agents start.")
@_duration("--start-within", default="10m", text="End when not all agents are connected by then.")
@_duration("--every", default="30s", text="Period of storm and flap.")
@click.option("--share", default=0.1, show_default=True, type=click.FloatRange(0, 1), help="Share of flap that is silent.")
@click.option(
    "--changes-per-minute",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, 600, min_open=True),
    help="Per agent of churn.",
)
@click.option("--max-lost-beats", "lost_beats", type=click.IntRange(0), help="Limit of lost heartbeats.")
@_duration(
    *("--max-latency", "p99"),
    default=None,
    text="Limit of the 99th percentile: of join or reconnect in these profiles, else of heartbeats.",
)
@click.option("--max-errors", "errors", type=click.IntRange(0), help="Limit of errors of any kind.")
@_duration(
    *("--max-lag", "lag"),
    default=f"{LAG_LIMIT * 1e3:.0f}ms",
    text="Limit of the generator's own lag, by its 99th percentile; a tenth of the judged latency is always allowed.",
)
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Where to write the report as JSON.")
@click.pass_context
def load(context: click.Context, /, *, profile: str, report: Path | None, **chosen: Any) -> None:
    from hollow.load.run import run_load  # noqa: PLC0415 - gRPC and the agent's parts, which no other command needs

    limits = Limits(**{each.name: chosen.pop(each.name) for each in fields(Limits)})
    with _reported_errors():
        settings = LoadSettings(Profile(profile), limits=limits, **chosen)
        result = asyncio.run(run_load(settings))
        if report is not None:
            report.write_text(json.dumps(result.document, indent=2) + "\n")
    context.exit(result.verdict)


@main.command(name="exchange-ca", help="Replaces the CA of a running hollow cluster's control plane, and prints the new one.")
@click.option("--kubeconfig", required=True, type=click.Path(path_type=Path), help="The cluster's kubeconfig.")
def exchange_ca(kubeconfig: Path) -> None:
    async def exchange() -> str:
        async with _client(kubeconfig) as client:
            return str((await client.create(AUTHORITY_PATH, {}))["authority"])

    with _reported_errors():
        click.echo(asyncio.run(exchange()), nl=False)


@asynccontextmanager
async def _client(kubeconfig: Path) -> AsyncIterator["KubeClient"]:
    from machinery.client.rest import KubeClient  # noqa: PLC0415 - it is half of the start-up time, and `serve` needs none

    async with await KubeClient.from_file(kubeconfig) as client:
        yield client


@contextmanager
def _reported_errors() -> Iterator[None]:
    """Context manager that converts errors of its block to click errors, which are printed on one line."""
    try:
        yield
    except MusterError as error:
        raise click.ClickException(error.message) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error


if __name__ == "__main__":
    main()
