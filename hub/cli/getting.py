"""hubctl get: tables as the hub makes them, documents as they are, and rows as they change."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from hub.cli.client import JSON, TABLE, HubClient
from hub.cli.connection import connected
from hub.cli.failures import CommandError
from hub.cli.lists import FORMS, WORDS, show_lists
from hub.cli.resources import Resource, resource_named
from hub.cli.tables import Layout, shown, wants_color

FORMATS = ("table", "wide", "json", "yaml", "name")


@click.command()
@click.argument("kind")
@click.argument("name", required=False)
@click.option("-w", "--watch", is_flag=True, help="Then show every change until interrupted; survives restarts of the hub.")
@click.option("-o", "--output", type=click.Choice((*FORMATS, *FORMS)), help="Another form; clusters are wide anyway.")
@click.option("-l", "--selector", default="", metavar="SELECTOR", help="Labels, as in 'env in (prod,dev),!edge'.")
@click.option(
    "--where", default="", metavar="CONDITION", help="Of clusters: as in 'version < 1.30 && available != \"True\"' (see below)."
)
@click.option("-n", "--namespace", default="", metavar="CLUSTER", help="Of add-ons and leases: those of one cluster.")
@connected
def get(client: HubClient, kind: str, name: str | None, **chosen: Any) -> None:
    """Show clusters, csr, rules, bootstrap-credentials, addons, leases, the fleet or leader; with NAME one of them.

    Clusters are shown with the age of the last heartbeat and the agent behind it. AGENT reads "(no session)" as soon as the
    agent's connection is gone; AVAILABLE turns Unknown when its lease ends.

    A condition compares name, version, cpu, memory, nodes, age, set, accepted, available, joined, clockSynced and the entries
    of labels, claims, taints, conditions, capacity and allocatable, as in labels["env"] == "prod", with ==, !=, <, <=, >, >=,
    in, && and ||, !, has(), startsWith(), endsWith(), contains() and matches(). What a cluster lacks is unknown, and unknown
    chooses nothing.

    \b
    Examples:
      hubctl get clusters
      hubctl get clusters -w
      hubctl get clusters -l region=eu
      hubctl get clusters --where 'version < 1.30 && memory >= 64Gi'
      hubctl get clusters --where 'available != "True" && age > 1h && !("maintenance" in taints)'
      hubctl get cluster edge1 -o yaml
      hubctl get csr
      hubctl get fleet
      hubctl get addons -n edge1
      hubctl get leader
      hubctl get crl -o pem
    """
    if kind.lower() in WORDS:
        show_lists(client, name, chosen["output"])
        return
    if chosen["output"] in FORMS:
        raise CommandError(f"-o {chosen['output']} is for revocation lists: hubctl get crl", code=2)
    show(client, Wish(resource_named(kind), name, **chosen))


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks to see."""

    resource: Resource
    name: str | None = None
    watch: bool = False
    output: str | None = None
    selector: str = ""
    where: str = ""
    namespace: str = ""

    @property
    def is_table(self) -> bool:
        return self.output in (None, "table", "wide")

    @property
    def query(self) -> dict[str, str]:
        by_name = {"fieldSelector": f"metadata.name={self.name}"} if self.name and self.watch else {}
        return {"labelSelector": self.selector, "where": self.where, **by_name}

    @property
    def path(self) -> str:
        """Of the one object, or of all; a watch is always on all, with the name as a field."""
        resource = self.resource
        return resource.of(self.name, self.namespace) if self.name and not self.watch else resource.within(self.namespace)


def show(client: HubClient, wish: Wish) -> None:
    """Prints objects once, and with `watch` every change of them. Raises CommandError."""
    if wish.name and (wish.selector or wish.where):
        raise CommandError("give a name, or --selector and --where, not both", code=2)
    if wish.name and wish.resource.namespaced and not wish.namespace:
        raise CommandError(f"an {wish.resource.noun} is found by its cluster too: give -n CLUSTER", code=2)
    if wish.watch and not wish.resource.watchable:
        raise CommandError(f"{wish.resource.words[0]} cannot be watched: leave out -w", code=2)
    printer: Rows | Documents = Rows(wish) if wish.is_table else Documents(wish)
    answer = client.get(wish.path, accept=printer.accept, **wish.query)
    printer.first(answer)
    if wish.watch:
        from hub.cli.watching import Watched, follow  # noqa: PLC0415 - start-up time

        follow(client, Watched(wish.path, wish.query, answer), printer)


class Rows:
    """Prints the tables that the hub makes."""

    accept = TABLE

    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self._wide = wish.output == "wide" or (wish.output is None and wish.resource.wide)
        self._chosen: list[int] = []
        self._layout: Layout | None = None

    def first(self, answer: dict[str, Any]) -> None:
        """The whole table; again after a gap in the watch."""
        rows = answer.get("rows") or []
        if not rows and not self._wish.watch:
            click.echo(f"there is no {self._wish.resource.noun} to show", err=True)
            return
        columns = answer.get("columnDefinitions") or []
        self._chosen = [index for index, column in enumerate(columns) if self._wide or not column.get("priority")]
        cells = [self._cells(row) for row in rows]
        if self._layout is None:
            titles = [columns[index]["name"] for index in self._chosen]
            self._layout = Layout(
                ["Namespace", *titles] if self._wish.resource.namespaced else titles, cells, color=wants_color()
            )
            click.echo(self._layout.header)
        for row in cells:
            click.echo(self._layout.row(row))

    def event(self, kind: str, answer: dict[str, Any]) -> None:
        """One change."""
        for row in answer.get("rows") or []:
            cells = self._cells(row)
            if self._layout is not None:
                line = self._layout.row(cells)
                click.echo(f"{line}   (deleted)" if kind == "DELETED" else line)

    def _cells(self, row: dict[str, Any]) -> list[str]:
        cells: Sequence[Any] = row.get("cells") or []
        chosen = [shown(cells[index]) if index < len(cells) else "" for index in self._chosen]
        if not self._wish.resource.namespaced:
            return chosen
        metadata = (row.get("object") or {}).get("metadata") or {}
        return [shown(metadata.get("namespace")), *chosen]


class Documents:
    """Prints objects as JSON, YAML or names."""

    accept = JSON

    def __init__(self, wish: Wish) -> None:
        self._wish = wish

    def first(self, answer: dict[str, Any]) -> None:
        items = answer.get("items")
        if self._wish.output == "name" or (self._wish.watch and items is not None):
            for item in [answer] if items is None else items:
                self._print(item)
        else:
            self._print(answer)

    def event(self, kind: str, answer: dict[str, Any]) -> None:
        del kind
        self._print(answer)

    def _print(self, document: dict[str, Any]) -> None:
        if self._wish.output == "name":
            group, _, _ = str(document.get("apiVersion") or self._wish.resource.group_version).partition("/")
            click.echo(f"{self._wish.resource.kind.lower()}.{group}/{document['metadata']['name']}")
        elif self._wish.output == "json":
            click.echo(json.dumps(document, indent=4))
        else:
            import yaml  # noqa: PLC0415 - the other forms do not wait for it

            several = self._wish.watch
            click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, explicit_start=several), nl=False)
