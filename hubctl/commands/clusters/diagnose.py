"""hubctl diagnose cluster: shows why a cluster is not Available, and what to do."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from hubctl.arguments.batch import run_each
from hubctl.arguments.completion import names_of
from hubctl.arguments.selection import SELECTION, select_objects
from hubctl.client.connection import connected
from hubctl.client.http import ApiClient
from hubctl.client.resources import CLUSTERS, DIAGNOSES
from hubctl.errors import NOT_WELL, CommandError
from hubctl.options import with_options
from hubctl.output.printers import print_document
from hubctl.output.tables import print_lines, printable, wants_color

MARKS = {"Ok": ("ok", "32"), "Waiting": ("waits", "33"), "Warning": ("warning", "33"), "Broken": ("broken", "31")}
WIDTH = max(len(mark) for mark, _ in MARKS.values())


@click.group()
def diagnose() -> None:
    """Diagnose problems of clusters.

    \b
    Examples:
      hubctl diagnose cluster edge1
    """


@diagnose.command("cluster")
@click.argument("names", nargs=-1, metavar="NAME...", shell_complete=names_of("clusters"))
@with_options(*SELECTION)
@click.option("-o", "--output", type=click.Choice(("json", "yaml")), help="Output format: the ClusterDiagnosis of the hub.")
@connected
def cluster(client: ApiClient, names: tuple[str, ...], output: str | None, **chosen: Any) -> None:
    """Check the registration and state of a cluster step by step, and suggest how to fix the first error.

    The steps check the hub's leader, the cluster and its bootstrap credential, acceptance, the certificate request, the
    certificate, the hub to which the agent reports, the session, the beats, the clock, the API server, the add-ons, the brake
    and flaps. For a name that never registered, the hub searches the bootstrap credentials. The command uses only data of the
    hub; run `spoke doctor` on the cluster to check the connection to the hub.

    Exit codes: 0 all clusters are Available without errors; 6 a cluster is not; 1 to 5 the diagnosis failed.

    \b
    Examples:
      hubctl diagnose cluster edge1
      hubctl diagnose cluster edge1 edge2 -o json
      hubctl diagnose cluster --where 'accepted && available != "True"'
      hubctl get clusters -o name -l region=eu | hubctl diagnose cluster -f -
      hubctl diagnose cluster edge1 || echo "edge1 needs a look"
    """
    selection, ill = select_objects(client, names, chosen, CLUSTERS), []

    def show(document: dict[str, Any]) -> None:
        if not (document.get("status") or {}).get("well"):
            ill.append(str(document["metadata"]["name"]))
        if output is not None:
            print_document(document, output, apart=True)
        else:
            print_lines(lines(document, color=wants_color()))

    run_each(selection.objects, lambda one: client.get(DIAGNOSES.of(one.name)), show)
    if ill and output is None:
        some = f" ({len(ill)} of {len(selection.objects)})" if len(selection.objects) > 1 else ""
        raise CommandError(f"with a problem: {', '.join(ill)}{some}", code=NOT_WELL)
    if ill:
        sys.exit(NOT_WELL)


def lines(document: Mapping[str, Any], *, color: bool) -> Iterator[str]:
    """Yield the lines of a ClusterDiagnosis: a title, and each step, with advice below a step that is not Ok."""
    status = document.get("status") or {}
    steps: Sequence[Mapping[str, str]] = status.get("steps") or ()
    width = max((len(step["step"]) for step in steps), default=0)
    yield f"cluster {document['metadata']['name']}: Available is {status.get('available')}"
    for step in steps:
        mark, code = MARKS.get(step["state"], (step["state"], "0"))
        mark = f"\x1b[{code}m{mark:<{WIDTH}}\x1b[0m" if color else f"{mark:<{WIDTH}}"
        yield f"  {mark}  {step['step']:<{width}}  {printable(step['message'])}"
        if step["state"] != "Ok" and step.get("advice"):
            yield f"  {'':<{WIDTH}}  {'':<{width}}  -> {printable(step['advice'])}"
