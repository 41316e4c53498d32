"""hubctl describe: details of one cluster, bootstrap credential or other object."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click

from hubctl.arguments.completion import names_of
from hubctl.client.connection import connected
from hubctl.client.http import TABLE, ApiClient
from hubctl.client.resources import CLUSTER_LABEL, CLUSTERS, CREDENTIALS, REQUESTS, TRANSITIONS, known_resource
from hubctl.output.tables import printable, shown, table, wants_color

NO_SESSION = "(no session)"
INDENT = "  "
NONE = "<none>"
HUBS, MOVE_TO = "hub.open-cluster-management.io/hubs", "hub.open-cluster-management.io/move-to"
"""Annotations: the hubs that the agent reports, as JSON; the hub that it is asked to move to."""
LAST = 10
"""Number of availability changes shown."""


class KindGroup(click.Group):
    """Accepts a kind as a command: kinds with their own page by any of their words, the others by `anything`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        word, slash, name = args[0].partition("/")
        known = known_resource(word)
        own = {CLUSTERS: cluster, CREDENTIALS: bootstrap_credential}.get(known) if known is not None else None
        if own is not None:
            return own.name, own, [name, *args[1:]] if slash else args[1:]
        if ctx.resilient_parsing or word.startswith("-") or word in self.commands:
            return super().resolve_command(ctx, args)
        from hubctl.commands.objects.describe_object import anything  # noqa: PLC0415 - start-up time

        return word, anything, args

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "anything":
            from hubctl.commands.objects.describe_object import anything  # noqa: PLC0415 - start-up time

            return anything
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "anything"]


@click.group(cls=KindGroup, subcommand_metavar="KIND NAME [OPTIONS]")
def describe() -> None:
    """Show all that is known of a cluster, a bootstrap credential, or any other object, which is `anything` below.

    \b
    Examples:
      hubctl describe cluster edge1
      hubctl describe bootstrap-credential 0123456789abcdef
      hubctl describe rule edges
      hubctl describe addon work-manager -n edge1
    """


@describe.command("cluster")
@click.argument("name", shell_complete=names_of("clusters"))
@connected
def cluster(client: ApiClient, name: str) -> None:
    """Show one cluster: decisions, heartbeat and session, version, resources, claims, taints, conditions, requests, changes.

    \b
    Examples:
      hubctl describe cluster edge1
    """
    document = client.get(CLUSTERS.of(name))
    row = _named_cells(client.get(CLUSTERS.of(name), accept=TABLE))
    requests = client.get(REQUESTS.path, accept=TABLE, labelSelector=f"{CLUSTER_LABEL}={name}")
    for line in lines(document, row, requests, color=wants_color()):
        click.echo(line)
    for line in history(document, client.get(TRANSITIONS.within(name), limit=str(LAST))):
        click.echo(line)


@describe.command("bootstrap-credential")
@click.argument("name", metavar="ID", shell_complete=names_of("bootstrap-credentials"))
@connected
def bootstrap_credential(client: ApiClient, name: str) -> None:
    """Show one bootstrap credential: what binds it, what it gives, where it stands, and who came in with it.

    \b
    Examples:
      hubctl describe bootstrap-credential 0123456789abcdef
    """
    from hubctl.commands.objects.describe_credential import lines as credential_lines  # noqa: PLC0415 - start-up time

    for line in credential_lines(client.get(CREDENTIALS.of(name))):
        click.echo(line)


def lines(
    document: Mapping[str, Any], row: Mapping[str, str], requests: Mapping[str, Any], *, color: bool = False
) -> list[str]:
    """The description. `row` holds the cluster's table cells by column name."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    agent = row.get("Agent", "")
    facts = [
        ("Name", metadata["name"]),
        ("Labels", _pairs(metadata.get("labels"))),
        ("Annotations", _pairs({name: text for name, text in (metadata.get("annotations") or {}).items() if name != HUBS})),
        ("Created", f"{metadata.get('creationTimestamp', '')} ({row.get('Age', '')} ago)"),
        ("Accepted", shown(spec.get("hubAcceptsClient", False))),
        ("Joined", row.get("Joined") or "False"),
        ("Available", row.get("Available") or "not known yet"),
        ("Last Beat", _last_beat(row.get("Last Beat", ""))),
        ("Session", "none is open" if NO_SESSION in agent or not agent else "open"),
        ("Agent", agent.replace(NO_SESSION, "").strip() or "not known yet"),
        *([("Moves To", moves_to)] if (moves_to := (metadata.get("annotations") or {}).get(MOVE_TO)) else []),
        ("Flaps", f"{row.get('Flaps') or 0} within a day"),
        ("Lease Duration", f"{spec.get('leaseDurationSeconds', 60)}s"),
        ("Version", (status.get("version") or {}).get("kubernetes") or "not known yet"),
        ("API Servers", ", ".join(config.get("url", "") for config in spec.get("managedClusterClientConfigs") or []) or NONE),
    ]
    width = max(len(name) for name, _ in facts) + 2
    described = [f"{name + ':':<{width}}{printable(str(value))}" for name, value in facts]
    described += _hubs((metadata.get("annotations") or {}).get(HUBS) or "[]", color=color)
    described += _taints(spec.get("taints") or [])
    described += _conditions(status.get("conditions") or [], color=color)
    described += _resources(status.get("capacity") or {}, status.get("allocatable") or {})
    described += _claims(status.get("clusterClaims") or [])
    return described + _requests(requests)


def history(document: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """The last changes of availability of this cluster, newest first, without those of earlier clusters of this name."""
    uid = document["metadata"].get("uid")
    kept = [item for item in answer.get("items") or [] if item.get("clusterUID") == uid]
    cells = [[shown(item.get(part) or NONE) for part in ("time", "from", "to", "reason", "actor")] for item in kept]
    return _rows("Availability Changes", ("Time", "From", "To", "Reason", "By"), cells)


def _last_beat(age: str) -> str:
    return "none yet" if age in ("", NONE) else f"{age} ago"


def _named_cells(answer: Mapping[str, Any]) -> dict[str, str]:
    names = [column["name"] for column in answer.get("columnDefinitions") or []]
    rows = answer.get("rows") or [{"cells": []}]
    return dict(zip(names, map(shown, rows[0]["cells"]), strict=False))


def _pairs(values: Mapping[str, str] | None) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted((values or {}).items())) or NONE


def _section(title: str, body: Iterable[str]) -> list[str]:
    found = list(body)
    return [f"{title}:", *found] if found else [f"{title}: {NONE}"]


def _rows(title: str, titles: tuple[str, ...], rows: list[list[str]], *, color: bool = False) -> list[str]:
    return _section(title, table(titles, rows, indent=INDENT, color=color) if rows else ())


def _hubs(annotation: str, *, color: bool) -> list[str]:
    """The agent's hubs in the order of preference; empty if it reports none."""
    try:
        found = json.loads(annotation)
    except ValueError:
        return ["Hubs: (not to be read)"]
    parts = ("name", "state", "id", "url", "credentialEndsAt")
    hubs = [hub for hub in found if isinstance(hub, Mapping)] if isinstance(found, list) else []
    cells = [[shown(hub.get(part) or NONE) for part in parts] for hub in hubs]
    return _rows("Hubs", ("Name", "State", "ID", "URL", "Credential Ends"), cells, color=color) if cells else []


def _taints(taints: list[Mapping[str, Any]]) -> list[str]:
    cells = [[shown(taint.get(part)) for part in ("key", "value", "effect", "timeAdded")] for taint in taints]
    return _rows("Taints", ("Key", "Value", "Effect", "Added"), cells)


def _conditions(conditions: list[Mapping[str, Any]], *, color: bool) -> list[str]:
    parts = ("type", "status", "lastTransitionTime", "reason", "message")
    cells = [[shown(condition.get(part)) for part in parts] for condition in conditions]
    return _rows("Conditions", ("Type", "Status", "Since", "Reason", "Message"), cells, color=color)


def _resources(capacity: Mapping[str, Any], allocatable: Mapping[str, Any]) -> list[str]:
    names = sorted({*capacity, *allocatable})
    cells = [[printable(name), shown(capacity.get(name)), shown(allocatable.get(name))] for name in names]
    return _rows("Resources", ("Name", "Capacity", "Allocatable"), cells)


def _claims(claims: list[Mapping[str, Any]]) -> list[str]:
    return _rows("Claims", ("Name", "Value"), [[shown(claim.get("name")), shown(claim.get("value"))] for claim in claims])


def _requests(answer: Mapping[str, Any]) -> list[str]:
    columns = [column["name"] for column in answer.get("columnDefinitions") or []]
    chosen = [columns.index(name) for name in ("Name", "Age", "Condition") if name in columns]
    cells = [[shown(row["cells"][index]) for index in chosen] for row in answer.get("rows") or []]
    return _rows("Certificate Requests", tuple(columns[index] for index in chosen), cells)
