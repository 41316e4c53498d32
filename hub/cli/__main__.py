"""hubctl: looks at a hub's inventory and decides who joins. A client of the HTTPS door like any other."""

import sys
from pathlib import Path

import click

from hub.cli.errors import CliError
from machinery.durations import parse_duration
from machinery.errors import MusterError
from machinery.product import version

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
OUTPUTS = ("table", "wide", "json", "yaml", "name")


class Seconds(click.ParamType[int]):
    """A duration such as 30m, as whole seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return round(parse_duration(str(value)).total_seconds())
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group(context_settings=CONTEXT)
@click.option("--kubeconfig", metavar="FILE", help="Default: $HUBCTL_KUBECONFIG, $KUBECONFIG, or the hub's on this machine.")
@click.version_option(version(), prog_name="hubctl")
@click.pass_context
def hubctl(context: click.Context, kubeconfig: str | None) -> None:
    """Look at a hub's inventory of clusters and decide who joins.

    \b
    Join a cluster, by hand:
      hubctl create bootstrap-kubeconfig --cluster edge1 -o edge1.kubeconfig
      (start the agent there: spoke run --bootstrap-kubeconfig edge1.kubeconfig ...)
      hubctl accept edge1
      hubctl certificate approve edge1
      hubctl get clusters -w
    """
    context.obj = kubeconfig


@hubctl.command()
@click.argument("kind")
@click.argument("name", required=False)
@click.option("-w", "--watch", is_flag=True, help="Go on with every change, until Ctrl-C.")
@click.option("-o", "--output", type=click.Choice(OUTPUTS), help="Clusters are shown wide unless told otherwise.")
@click.option("-l", "--selector", metavar="SELECTOR", help="Only objects with these labels, e.g. 'env in (prod,dev),!edge'.")
@click.pass_obj
def get(  # noqa: PLR0917 - click calls it by name
    kubeconfig: str | None,
    kind: str,
    name: str | None,
    watch: bool,  # noqa: FBT001 - click calls it by name
    output: str | None,
    selector: str | None,
) -> None:
    """List clusters, csr, bootstrap-credentials, addons or leases, or show one.

    \b
    hubctl get clusters              with version, nodes, last beat and agent
    hubctl get clusters -w           the same, going on
    hubctl get cluster edge1 -o yaml
    hubctl get csr
    """
    from hub.cli import listing  # noqa: PLC0415 - start-up time
    from hub.cli.connection import Door  # noqa: PLC0415 - start-up time
    from hub.cli.resources import kind_named  # noqa: PLC0415 - start-up time

    asked = listing.Asked(kind_named(kind), name, output, selector)
    door = Door.open(kubeconfig)
    for line in listing.watched(door, asked) if watch else listing.listed(door, asked):
        click.echo(line)


@hubctl.command()
@click.argument("kind", type=click.Choice(["cluster"]))
@click.argument("name")
@click.pass_obj
def describe(kubeconfig: str | None, kind: str, name: str) -> None:
    """Show all that the hub knows of a cluster: conditions, last beat, session, resources, claims."""
    from hub.cli.connection import Door  # noqa: PLC0415 - start-up time
    from hub.cli.describe import cluster_page  # noqa: PLC0415 - start-up time

    del kind
    for line in cluster_page(Door.open(kubeconfig), name):
        click.echo(line)


@hubctl.command()
@click.argument("names", nargs=-1, required=True, metavar="CLUSTER...")
@click.pass_obj
def accept(kubeconfig: str | None, names: tuple[str, ...]) -> None:
    """Let clusters into the inventory. Their certificate requests are approved separately."""
    _accept(kubeconfig, names, accepted=True)


@hubctl.command()
@click.argument("names", nargs=-1, required=True, metavar="CLUSTER...")
@click.pass_obj
def deny(kubeconfig: str | None, names: tuple[str, ...]) -> None:
    """Refuse clusters: what their agents report no longer counts."""
    _accept(kubeconfig, names, accepted=False)


@hubctl.group()
def certificate() -> None:
    """Decide certificate requests, by their name or by the name of a cluster."""


@certificate.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.pass_obj
def approve(kubeconfig: str | None, names: tuple[str, ...]) -> None:
    """Approve requests. NAME is a request, or a cluster: then all its undecided requests."""
    _decide(kubeconfig, names, approve=True)


@certificate.command("deny")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.pass_obj
def deny_certificate(kubeconfig: str | None, names: tuple[str, ...]) -> None:
    """Deny requests. NAME is a request, or a cluster: then all its undecided requests."""
    _decide(kubeconfig, names, approve=False)


@hubctl.group()
def create() -> None:
    """Make something at the hub."""


@create.command("bootstrap-kubeconfig")
@click.option("--cluster", required=True, help="The one cluster name that may register with it.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write, readable by you alone.")
@click.option("--server", metavar="URL", help="The HTTPS door as that cluster reaches it. Default: as the hub advertises.")
@click.option("--grpc-server", metavar="HOST:PORT", help="The agents' port as that cluster reaches it. Default: likewise.")
@click.option("--expires", type=Seconds(), help="How long it opens the hub, e.g. 1h. Default: the hub's (1h).")
@click.option("--uses", default=1, show_default=True, type=click.IntRange(min=1), help="Cluster names it may admit.")
@click.option("--allow-loopback", is_flag=True, help="Accept addresses that only this machine can reach.")
@click.pass_obj
def bootstrap_kubeconfig(  # noqa: PLR0917 - click calls it by name
    kubeconfig: str | None,
    cluster: str,
    output: Path,
    server: str | None,
    grpc_server: str | None,
    expires: int | None,
    uses: int,
    allow_loopback: bool,  # noqa: FBT001 - click calls it by name
) -> None:
    """Write a kubeconfig with which the agent of a new cluster registers.

    The private key is made here and stays in the file; the hub sees a certificate request.
    """
    from hub.cli import bootstrap  # noqa: PLC0415 - start-up time
    from hub.cli.connection import Door  # noqa: PLC0415 - start-up time

    wish = bootstrap.Wish(cluster, expires, uses, server, grpc_server, allow_loopback)
    bootstrap.save(output, bootstrap.create(Door.open(kubeconfig), wish))
    click.echo(f"{output} written: start the agent with `spoke run --bootstrap-kubeconfig {output}`")


@hubctl.command()
@click.argument("kind")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.pass_obj
def delete(kubeconfig: str | None, kind: str, names: tuple[str, ...]) -> None:
    """Delete clusters, requests or add-ons; a deleted bootstrap credential is revoked."""
    from hub.cli.connection import Door  # noqa: PLC0415 - start-up time
    from hub.cli.resources import kind_named  # noqa: PLC0415 - start-up time

    found, door = kind_named(kind), Door.open(kubeconfig)
    for name in names:
        door.delete(found.object_path(name))
        click.echo(f"{found.noun} {name} deleted")


def _accept(kubeconfig: str | None, names: tuple[str, ...], *, accepted: bool) -> None:
    from hub.cli.connection import Door  # noqa: PLC0415 - start-up time
    from hub.cli.decisions import set_accepted  # noqa: PLC0415 - start-up time

    door = Door.open(kubeconfig)
    for name in names:
        click.echo(set_accepted(door, name, accepted=accepted))


def _decide(kubeconfig: str | None, names: tuple[str, ...], *, approve: bool) -> None:
    from hub.cli.connection import Door  # noqa: PLC0415 - start-up time
    from hub.cli.decisions import decide_requests  # noqa: PLC0415 - start-up time

    door = Door.open(kubeconfig)
    for name in names:
        for line in decide_requests(door, name, approve=approve):
            click.echo(line)


def main() -> None:
    """The program. Exit codes: 0 done, 1 refused or unreachable, 2 wrong command line or kubeconfig."""
    try:
        hubctl(prog_name="hubctl")
    except CliError as error:
        click.echo(f"error: {error.message}", err=True)
        sys.exit(error.exit_code)
    except MusterError as error:
        click.echo(f"error: {error.message}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    main()
