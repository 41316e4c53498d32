"""hollow: Kubernetes clusters without machines, for trying things out, for tests and for load."""

import machinery.startup_imports  # isort: skip

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from machinery import product
from machinery.errors import MusterError
from machinery.lifecycle.process import stop_signals

machinery.startup_imports.require_extra("hollow")

from hollow.cluster import AUTHORITY_PATH, HollowFleet, names, serve_fleet  # noqa: E402 - needs the extra
from hollow.faults import ADMIN_PATH, Faults  # noqa: E402 - the same
from hollow.objects import KUBERNETES_VERSION, ClusterShape  # noqa: E402 - the same

if TYPE_CHECKING:
    from machinery.client.rest import KubeClient

_SERVE_HELP = """Serves hollow clusters until SIGTERM or Ctrl-C.

A hollow cluster answers as a real API server does for nodes, namespaces, secrets, config maps, leases, events, Deployments
with their pods, ClusterClaims, roles and what else charts install, over TLS, to kubectl, Helm and any other client.
ServiceAccounts may do what its roles say. It runs no container and stores nothing on disk; a cluster of the same name
has the same identity (the uid of kube-system) every time.

\b
  hollow serve --kubeconfig-out c1.kubeconfig
  kubectl --kubeconfig c1.kubeconfig get nodes
  hollow serve --count 100 --name load --kubeconfig-out '/tmp/fleet/{name}.kubeconfig'

The kubeconfig is written when the cluster answers."""

_FAULT_HELP = """Sets the faults of a running hollow cluster.

Exactly the FAULTs named are set; `none` removes all; without any it shows those that are set.

\b
  slow=2s               every answer waits for so long
  error                 everything is answered 500
  hang                  nothing is answered
  not-live              /livez and /healthz fail, the API works
  no-livez              /livez is not served, /healthz is
  refuse-secret-writes  secrets can be read and not written
  stall-before-write=3  the third write of a secret, counted from now, is neither done nor answered
  stall-after-write=3   it is done, and not answered

\b
  hollow fault --kubeconfig c1.kubeconfig not-live
  hollow fault --kubeconfig c1.kubeconfig slow=500ms refuse-secret-writes
  hollow fault --kubeconfig c1.kubeconfig none"""


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
    """Converts errors of the block to one-line click errors."""
    try:
        yield
    except MusterError as error:
        raise click.ClickException(error.message) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error


if __name__ == "__main__":
    main()
