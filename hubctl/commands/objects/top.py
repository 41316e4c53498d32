"""hubctl top: shows resources of clusters, and the state of the hub's replicas."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import click

from hubctl.arguments.completion import where_option
from hubctl.client.connection import connected
from hubctl.client.http import TABLE, ApiClient
from hubctl.client.resources import CLUSTERS, REPLICAS, join_pages, pages
from hubctl.options import text_option
from hubctl.output.printers import print_document
from hubctl.output.tables import cell_text, print_lines, table

GIBIBYTE = 2**30
NONE = "-"
CLUSTER_TITLES = ("Name", "Nodes", "CPU", "Allocatable", "Memory", "Allocatable", "Last Beat", "Flaps")
REPLICA_TITLES = ("Name", "State", "Leader", "Sessions", "Watches", "CPU", "Memory", "Clock", "Last Seen")
ORDERS = ("name", "nodes", "cpu", "memory")


OUTPUT = click.option("-o", "--output", type=click.Choice(("json", "yaml")), help="Output format. Default: a table.")


@click.group()
def top() -> None:
    """Show resources of clusters and the state of the hub's replicas.

    \b
    Examples:
      hubctl top clusters
      hubctl top replicas
    """


@top.command("clusters")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@text_option("-l", "--selector", "SELECTOR", "Clusters with these labels.")
@where_option(help="Only clusters that meet the condition, as in `hubctl get clusters`.")
@click.option(
    "--sort-by",
    type=click.Choice(ORDERS),
    default="name",
    show_default=True,
    help="Sort by name, or by a value, largest first.",
)
@OUTPUT
@connected
def clusters(client: ApiClient, names: tuple[str, ...], *, selector: str, where: str, sort_by: str, output: str | None) -> None:
    """Show nodes, CPU (cores) and memory (GiB) with the part that is allocatable, and the last beat of clusters.

    Agents do not report what workloads request or use. The last line is the total.

    \b
    Examples:
      hubctl top clusters --sort-by memory
      hubctl top clusters -l region=eu
      hubctl top clusters edge1 edge2
      hubctl top clusters -o json
    """
    query = {"labelSelector": selector, "where": where, "includeObject": "Object"}
    answer = join_pages(pages(client, CLUSTERS.path, query, accept=TABLE))
    columns = [str(column["name"]) for column in answer.get("columnDefinitions") or []]
    found = [ClusterRow(columns, row) for row in answer.get("rows") or []]
    found = [each for each in found if not names or each.name in names]
    missing = sorted({*names} - {each.name for each in found})
    if sort_by != "name":
        found.sort(key=lambda each: each.amount(sort_by), reverse=True)
    if output:
        print_document({"clusters": [each.document for each in found]}, output)
    else:
        rows = [
            [each.name, *_amounts([each]), cell_text(each.cells.get("Last Beat")), cell_text(each.cells.get("Flaps"))]
            for each in found
        ]
        print_lines(table(CLUSTER_TITLES, [*rows, [f"{len(found)} clusters", *_amounts(found), "", ""]]))
    for name in missing:
        click.echo(f'there is no cluster "{name}" like that', err=True)


@top.command("replicas")
@OUTPUT
@connected
def replicas(client: ApiClient, output: str | None) -> None:
    """Show sessions, watches, resource usage and clock difference to the database of the hub's replicas.

    \b
    Examples:
      hubctl top replicas
    """
    items = client.get(REPLICAS.path).get("items") or []
    if output:
        print_document(
            {"replicas": [{"name": item["metadata"]["name"], **(item.get("status") or {})} for item in items]}, output
        )
        return
    rows = []
    for item in items:
        status = item.get("status") or {}
        ahead = status.get("clockAheadSeconds")
        cells = (
            item["metadata"]["name"],
            status.get("state"),
            "*" if status.get("leader") else "",
            status.get("sessions"),
            *(status.get(part, NONE) for part in ("watches", "cpu", "memory")),
            NONE if ahead is None else f"{ahead:+.1f}s",
            status.get("lastSeenTime"),
        )
        rows.append([cell_text(cell) for cell in cells])
    sums = [sum(int((item.get("status") or {}).get(part) or 0) for item in items) for part in ("sessions", "watches")]
    total = ["", f"{len(items)} replicas", "", *map(str, sums), "", "", "", ""]
    print_lines(table(REPLICA_TITLES, [*rows, total]))


class ClusterRow:
    """A row of the hub's table of clusters, with the capacity and the allocatable resources of the cluster."""

    def __init__(self, columns: Sequence[str], row: Mapping[str, Any]) -> None:
        self.name = str(row["object"]["metadata"]["name"])
        self.cells = dict(zip(columns, row["cells"], strict=False))
        status = row["object"].get("status") or {}
        self._capacity, self._allocatable = status.get("capacity") or {}, status.get("allocatable") or {}

    @property
    def document(self) -> dict[str, Any]:
        """Return the row as a document, with amounts as Kubernetes quantities."""
        return {
            "name": self.name,
            "capacity": self._capacity,
            "allocatable": self._allocatable,
            "flaps": self.cells.get("Flaps"),
        }

    def amount(self, of: str) -> Fraction:
        """Return the allocatable amount of the resource `of`; for `nodes`, their number."""
        return self.capacity(of) if of == "nodes" else _quantity(self._allocatable.get(of))

    def capacity(self, of: str) -> Fraction:
        return _quantity(self._capacity.get(of))


def _amounts(clusters: Sequence[ClusterRow]) -> list[str]:
    cells = [_number(sum((each.capacity("nodes") for each in clusters), Fraction()), 1)]
    for resource, unit in (("cpu", 1), ("memory", GIBIBYTE)):
        left = sum((each.amount(resource) for each in clusters), Fraction())
        total = sum((each.capacity(resource) for each in clusters), Fraction())
        cells += [_number(total, unit), _number(left, unit)]
    return cells


def _quantity(text: Any) -> Fraction:
    from machinery.expression.types import parse_quantity  # noqa: PLC0415 - start-up time

    try:
        return parse_quantity(str(text)) if text is not None else Fraction()
    except ValueError:
        return Fraction()


def _number(amount: Fraction, unit: int) -> str:
    scaled = amount / unit
    return str(int(scaled)) if scaled == int(scaled) else f"{float(scaled):.1f}"
